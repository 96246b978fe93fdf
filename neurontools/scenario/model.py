"""The model of a scenario: processes with cores, times, load, memory and errors; faults; the host.

Curves are over the age of a process in seconds; percentages are 0..100, sizes bytes, rates per second and core.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neurontools.scenario.curves import NOTHING, Curve, Scaled

if TYPE_CHECKING:
    from neurontools.machine.faults.params import FaultSpec
    from neurontools.scenario.latency import Latency


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model on every core of a process: device memory, and the ages at load and unload (None: never)."""

    name: str
    code_bytes: int = 0
    constant_bytes: int = 0
    scratchpad_bytes: int = 0
    load_s: float = 0.0
    unload_s: float | None = None

    def named(self, name: str) -> ModelPlan:
        """Return the same model under another name."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class Restart:
    """The restart of a process that ended early: after a delay that grows by a factor, at most `times` times.

    `times` None: without limit.
    """

    delay_s: float
    backoff: float = 1.0
    longest_s: float = 3600.0
    times: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a process before its stop time.

    It runs `shortest_s` to `longest_s`, depending on the seed. With a status it fails one execution with it
    `linger_s` before its end and is idle from then on.
    """

    shortest_s: float
    longest_s: float
    status: int | None = None
    linger_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a process does over its age.

    `utilization` is percent of wall time in which a core executes, `executions` successful ones per second and core,
    `errors` pairs of NRT status number and failed executions per second and core. `mfu` is the share (0..1) of the
    core's peak while it executes. `memory` and `host_memory` are pairs of category and bytes, per core and per
    process; models come on top. `cpu_user` and `cpu_system` are percent of one vCPU.
    """

    utilization: Curve = NOTHING
    executions: Curve = NOTHING
    errors: tuple[tuple[int, Curve], ...] = ()
    memory: tuple[tuple[str, Curve], ...] = ()
    host_memory: tuple[tuple[str, Curve], ...] = ()
    cpu_user: Curve = NOTHING
    cpu_system: Curve = NOTHING
    mfu: float = 0.0

    def seeded(self, seed: str) -> Work:
        """Return the work with the noise of a seed."""
        return Work(
            utilization=self.utilization.seeded(f"{seed}/utilization"),
            executions=self.executions.seeded(
                f"{seed}/utilization" if isinstance(self.executions, Scaled) else f"{seed}/executions"
            ),
            errors=tuple((status, curve.seeded(f"{seed}/errors/{status}")) for status, curve in self.errors),
            memory=tuple((name, curve.seeded(f"{seed}/memory/{name}")) for name, curve in self.memory),
            host_memory=tuple(
                (name, curve.seeded(f"{seed}/host_memory/{name}")) for name, curve in self.host_memory
            ),
            cpu_user=self.cpu_user.seeded(f"{seed}/cpu/user"),
            cpu_system=self.cpu_system.seeded(f"{seed}/cpu/system"),
            mfu=self.mfu,
        )


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process of a scenario. `rank` counts in its group, `cores` are machine-wide logical ids.

    `latencies` are pairs of an age and the distribution from then on. `stop_s` is scenario time, None: at the end.
    """

    group: str
    rank: int
    tag: str
    command: str
    uid: int | None
    runtime_version: str
    uses_device: bool
    cores: tuple[int, ...]
    start_s: float
    stop_s: float | None
    work: Work
    models: tuple[ModelPlan, ...]
    latencies: tuple[tuple[float, Latency], ...]
    ending: Ending | None
    restart: Restart | None
    seed: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group of processes."""

    name: str
    description: str
    processes: tuple[ProcessPlan, ...]
    phases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """A fault at a scenario time; the seconds in `spec` are scenario seconds too."""

    at_s: float
    spec: FaultSpec


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The load of the host in an offline recording: percent of all vCPUs, bytes of memory."""

    cpu_user: Curve = NOTHING
    cpu_system: Curve = NOTHING
    memory: Curve = NOTHING


@dataclass(frozen=True, slots=True)
class Scenario:
    """A checked scenario; every process has its cores."""

    name: str
    description: str
    instance_type: str
    lnc: int
    duration_s: float
    seed: int
    groups: tuple[GroupPlan, ...]
    faults: tuple[FaultPlan, ...] = ()
    host: HostPlan = field(default_factory=HostPlan)

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """The processes of all groups."""
        return tuple(process for group in self.groups for process in group.processes)
