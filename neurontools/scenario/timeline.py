"""The timeline of a scenario: starts and ends of process runs, and faults, in order of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.machine.events import Layout
from neurontools.machine.instances import catalogue
from neurontools.scenario.process_runs import plan_runs

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.scenario.model import FaultPlan, Scenario
    from neurontools.scenario.process_runs import ProcessRun, ProcessRuns


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """What happens at one scenario time: first ends, then starts, then faults."""

    at_s: float
    ends: tuple[ProcessRun, ...]
    starts: tuple[ProcessRun, ...]
    faults: tuple[FaultPlan, ...]


class Timeline:
    """A scenario with its machine, the runs of its processes, and its events."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.instance: InstanceType = catalogue.instance_type(scenario.instance_type)
        self.layout = Layout(
            self.instance.device_count,
            self.instance.cores_per_device(scenario.lnc),
            self.instance.device.memory_bytes,
        )
        self.runs: ProcessRuns = plan_runs(scenario, self.layout)
        self.events: tuple[ScheduledEvent, ...] = self._schedule()

    def _schedule(self) -> tuple[ScheduledEvent, ...]:
        ends: dict[float, list[ProcessRun]] = {}
        starts: dict[float, list[ProcessRun]] = {}
        faults: dict[float, list[FaultPlan]] = {}
        for run in self.runs:
            starts.setdefault(run.start_s, []).append(run)
            ends.setdefault(run.end_s, []).append(run)
        for fault in self.scenario.faults:
            faults.setdefault(fault.at_s, []).append(fault)
        return tuple(
            ScheduledEvent(
                at_s,
                tuple(ends.get(at_s, ())),
                tuple(starts.get(at_s, ())),
                tuple(faults.get(at_s, ())),
            )
            for at_s in sorted({*ends, *starts, *faults})
        )
