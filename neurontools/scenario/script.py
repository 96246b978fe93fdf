"""What happens when in a scenario: lives that begin and end, and faults, in order of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.machine.events import Layout
from neurontools.machine.instances import catalogue
from neurontools.scenario.memory_plan import plan_lives

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.scenario.lives import Life, Lives
    from neurontools.scenario.model import FaultPlan, Scenario


@dataclass(frozen=True, slots=True)
class Cue:
    """What happens at one scenario time: first ends, then starts, then faults."""

    at_s: float
    ends: tuple[Life, ...]
    starts: tuple[Life, ...]
    faults: tuple[FaultPlan, ...]


class Script:
    """A scenario with everything that follows from it.

    Args:
        scenario: what is played.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.instance: InstanceType = catalogue.instance_type(scenario.instance_type)
        self.layout = Layout(
            self.instance.device_count,
            self.instance.cores_per_device(scenario.lnc),
            self.instance.device.memory_bytes,
        )
        self.lives: Lives = plan_lives(scenario, self.layout)
        self.cues: tuple[Cue, ...] = self._cues()

    def _cues(self) -> tuple[Cue, ...]:
        ends: dict[float, list[Life]] = {}
        starts: dict[float, list[Life]] = {}
        faults: dict[float, list[FaultPlan]] = {}
        for life in self.lives:
            starts.setdefault(life.start_s, []).append(life)
            ends.setdefault(life.end_s, []).append(life)
        for fault in self.scenario.faults:
            faults.setdefault(fault.at_s, []).append(fault)
        return tuple(
            Cue(
                at_s,
                tuple(ends.get(at_s, ())),
                tuple(starts.get(at_s, ())),
                tuple(faults.get(at_s, ())),
            )
            for at_s in sorted({*ends, *starts, *faults})
        )
