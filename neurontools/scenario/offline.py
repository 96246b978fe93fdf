"""The recording of a scenario without a machine: the same bytes for the same seed.

It runs neuron-monitor's own collector and writer on the scenario's clock, machine and host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.daemon.telemetry import SnapshotBuilder
from neurontools.machine.devices import Layout
from neurontools.machine.events import FaultTaken, Leave, Register, Reserve, TakeFault, Tick
from neurontools.machine.faults.params import Action, Victim
from neurontools.machine.host import CpuTimes, HostSample
from neurontools.machine.journal import Definition
from neurontools.machine.machine_names import instance_id
from neurontools.machine.processes import ProcessKey
from neurontools.machine.protocol import SYNTHETIC_PIDS_ABOVE, RefusedError
from neurontools.machine.requests import ProcessSpec, ReleaseFault
from neurontools.machine.snapshot import CoreTotals, CoreUse, MemoryUse, ProcessState, Snapshot
from neurontools.machine.state import MachineState
from neurontools.monitor.codec import format_line
from neurontools.monitor.collector import VcpuSample, reports
from neurontools.monitor.config import (
    MetricPeriod,
    MonitorConfig,
    RuntimeSelection,
    default_config,
)
from neurontools.monitor.report import HostMemoryInfo
from neurontools.runtime.faults import exec_timeout_s
from neurontools.scenario.faulted_core import FaultedCore
from neurontools.scenario.synthetic_process import model_states, scripted_counters
from neurontools.scenario.timeline import RunClock, ScenarioTimeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.events import Effect, Event, Process
    from neurontools.machine.faults.params import Hit
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.pages.writer import CoreCounters
    from neurontools.scenario.model import HostPlan, Scenario
    from neurontools.scenario.timeline import ProcessRun, RunState, ScheduledEvent

_SWITCHES_PER_CPU_SECOND = 2500
# 2026-01-01T00:00:00Z, the same on every computer.
STARTED_UNIX_S = 1_767_225_600.0
_TICKS_A_SECOND = 100
# How often processes that a fault may hit are updated, and questions about faults that each may ask then.
_STEP_NS = 250_000_000
_QUERIES = 64


def offline_lines(
    scenario: Scenario, *, machine: str, period_s: float | None = None, duration_s: float | None = None
) -> Iterator[str]:
    """Yield the lines that neuron-monitor would print during a play, without their newlines.

    Args:
        scenario: the scenario.
        machine: the machine's name.
        period_s: seconds between two lines, None for neuron-monitor's own default.
        duration_s: scenario seconds, None for the scenario's own.
    """
    clock = _Clock()
    timeline = ScenarioTimeline(scenario)
    end_s = min(scenario.duration_s, scenario.duration_s if duration_s is None else duration_s)
    snapshots = ScenarioSnapshots(timeline, machine)
    host = _Host(scenario.host, timeline.instance, clock)

    def snapshot() -> Snapshot:
        return snapshots.at(clock.time_s)

    for report in reports(monitor_config(period_s), snapshot, host, clock=clock.read, sleep=clock.advance):
        if clock.time_s > end_s or clock.time_s >= scenario.duration_s:
            return
        yield format_line(report)


def monitor_config(period_s: float | None) -> MonitorConfig:
    """Return neuron-monitor's default configuration, with another period for all groups if given."""
    usual = default_config()
    if period_s is None:
        return usual
    return MonitorConfig(
        period_s,
        tuple(
            RuntimeSelection(
                selection.tag_filter,
                tuple(MetricPeriod(metric.group, period_s) for metric in selection.metrics),
            )
            for selection in usual.runtimes
        ),
        tuple(MetricPeriod(metric.group, period_s) for metric in usual.system),
    )


class _Clock:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def read(self) -> float:
        return self.time_s

    def advance(self, seconds: float) -> None:
        self.time_s += seconds


class _Host:
    """The scenario's host: every vCPU does the same share of the work."""

    def __init__(self, plan: HostPlan, instance: InstanceType, clock: _Clock) -> None:
        self._plan = plan
        self._instance = instance
        self._clock = clock

    def now_ns(self) -> int:
        return round(self._clock.time_s * 1e9)

    def vcpus(self) -> VcpuSample:
        time_s = self._clock.time_s
        user_s = self._plan.cpu_user.integral(time_s) / 100
        system_s = self._plan.cpu_system.integral(time_s) / 100
        idle_s = max(0.0, time_s - user_s - system_s)
        count = self._instance.vcpus
        switches = int((user_s + system_s) * count * _SWITCHES_PER_CPU_SECOND)
        return VcpuSample(
            self.now_ns(), ((user_s, 0.0, system_s, idle_s, 0.0, 0.0, 0.0, 0.0),) * count, switches
        )

    def processes(self, _keys: list[tuple[int, int]]) -> HostSample:
        return HostSample(self._clock.time_s * self._instance.vcpus, CpuTimes(0.0, 0.0), ())

    def memory(self, period_s: float) -> HostMemoryInfo:
        used = int(self._plan.memory.value(self._clock.time_s))
        return HostMemoryInfo(
            period_s=period_s, memory_total_bytes=self._instance.host_memory_bytes, memory_used_bytes=used
        )


class ScenarioSnapshots:
    """Snapshots of a scenario at any time, at speed 1: a machine on the scenario's clock.

    Args:
        timeline: the scenario.
        machine: the name of its machine; its instance id is derived from it.
    """

    def __init__(self, timeline: ScenarioTimeline, machine: str) -> None:
        self._timeline = timeline
        self._machine_name = machine
        self._builder = SnapshotBuilder(
            Definition(machine, timeline.instance.name, timeline.scenario.lnc, STARTED_UNIX_S),
            timeline.instance,
        )
        runs = sorted(timeline.runs, key=lambda run: (run.start_s, run.process))
        self._pids = {
            (run.process, run.attempt): SYNTHETIC_PIDS_ABOVE + 1 + index for index, run in enumerate(runs)
        }
        self._begin()

    def at(self, time_s: float) -> Snapshot:
        """Return the machine at a scenario time."""
        now_ns = round(time_s * 1e9)
        if now_ns < self._clock.now_ns:
            self._begin()
        while self._next < len(self._timeline.events) and self._timeline.events[self._next].at_s <= time_s:
            event = self._timeline.events[self._next]
            self._advance(round(event.at_s * 1e9))
            self._carry_out(event)
            self._next += 1
        self._advance(now_ns)
        for process in sorted(self._processes.values(), key=OfflineProcess.growth_bytes):
            process.reserve()
        snapshot = self._builder.snapshot(self._clock.state, (), now_ns, STARTED_UNIX_S + time_s)
        return replace(
            snapshot,
            instance_id=instance_id(self._machine_name, 0),
            ultraserver=None,
            processes=tuple([self._processes[key].snapshot() for key in sorted(self._processes)]),
        )

    def _begin(self) -> None:
        layout = self._timeline.layout
        layout = Layout(
            layout.device_count, layout.cores_per_device, layout.memory_bytes, self._builder.links
        )
        self._clock = _MachineClock(MachineState(layout))
        self._processes: dict[tuple[int, int], OfflineProcess] = {}
        self._waiting: dict[tuple[int, int], ProcessRun] = {}
        self._next = 0

    def _carry_out(self, event: ScheduledEvent) -> None:
        for run in event.ends:
            self._waiting.pop((run.process, run.attempt), None)
            process = self._processes.pop((run.process, run.attempt), None)
            if process is not None:
                process.end()
        self._waiting |= {(run.process, run.attempt): run for run in event.starts}
        self._start_waiting()
        for plan in event.faults:
            self._clock.handle(plan.spec)

    def _start_waiting(self) -> None:
        flops_s = self._timeline.instance.device.core.tensor_flops_s("bf16") * self._timeline.scenario.lnc
        timeout_s = exec_timeout_s({}, self._timeline.instance.name)
        for key, run in list(self._waiting.items()):
            process = OfflineProcess(run, self._pids[key], self._clock, flops_s, timeout_s)
            if process.register():
                self._processes[key] = process
                del self._waiting[key]

    def _advance(self, to_ns: int) -> None:
        """Let time pass; processes that a fault may hit are updated in fixed steps, whenever snapshots are taken."""
        while self._clock.state.faults.faults() or any(
            process.is_faulted for process in self._processes.values()
        ):
            step_ns = (self._clock.now_ns // _STEP_NS + 1) * _STEP_NS
            if step_ns > to_ns:
                break
            self._clock.tick(step_ns)
            self._start_waiting()
            for process in self._processes.values():
                process.update_faulted()
        self._clock.tick(to_ns)


class _MachineClock:
    """A machine and its time."""

    def __init__(self, state: MachineState) -> None:
        self.state = state
        self.now_ns = 0

    def handle(self, event: Event) -> tuple[Effect, ...]:
        """Return the effects of an event, none if it is refused."""
        try:
            return self.state.handle(event, self.now_ns)
        except RefusedError:
            return ()

    def tick(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.state.handle(Tick(), now_ns)


class OfflineProcess:
    """A run of a process on the machine; it asks the machine about faults itself (`FaultQueries`)."""

    def __init__(
        self, run: ProcessRun, pid: int, clock: _MachineClock, flops_s: float, timeout_s: int
    ) -> None:
        self._run = run
        self._states = RunClock(run)
        self._clock = clock
        self._key = ProcessKey(pid, round(run.start_s * _TICKS_A_SECOND))
        self._flops_s = flops_s * run.plan.work.mfu
        self._timeout_ns = timeout_s * 1_000_000_000
        self._memory = self._refused = MemoryUse()
        self._latest: tuple[int, RunState] = (clock.now_ns, self._states.state(clock.now_ns / 1e9))
        self._faulted: list[FaultedCore] = []
        self._shown: list[CoreCounters] = []
        self.left = 0

    def register(self) -> bool:
        """Put it on the machine; return whether its cores were free."""
        plan = self._run.plan
        spec = ProcessSpec(
            plan.tag, plan.command, plan.uses_device, plan.cores or None, None, plan.runtime_version
        )
        # A synthetic process never ends by itself, so its player is of no account here.
        return bool(self._clock.handle(Register(self._key, plan.uid or 0, spec, ProcessKey(0, 0))))

    def end(self) -> None:
        """Take it off the machine with what it did."""
        state = self._states.state(self._run.end_s)
        uses = [
            CoreTotals(use.core, use.busy_ns, use.executions, use.flops, 0, use.model_loads, use.failures)
            for use in self._uses(state)
            if use.executions or use.model_loads
        ]
        self._clock.handle(Leave(self._key, core_totals=tuple(uses)))

    @property
    def is_faulted(self) -> bool:
        """Whether a fault has hit it, or might have."""
        return bool(self._faulted)

    def update_faulted(self) -> None:
        """Ask about the faults of its executions since the last step."""
        armed = self._clock.state.faults.armed_for(self._process)
        if not armed and not self._faulted:
            return
        scripted = scripted_counters(self._state(), self._flops_s)
        if not self._faulted:
            self._faulted = [
                FaultedCore(core, scripted, self._clock.now_ns, self._timeout_ns)
                for core in self._run.plan.cores
            ]
        self.left = _QUERIES
        self._shown = [
            core.advance(scripted, self if armed else None, self._clock.now_ns) for core in self._faulted
        ]

    def growth_bytes(self) -> int:
        """Return the device memory that it needs beyond what it holds, for each core."""
        return self._state().memory.total_bytes - self._memory.total_bytes

    def reserve(self) -> None:
        """Reserve the memory that it needs now; where that fails it keeps what it holds."""
        needed, cores = self._state().memory, self._run.plan.cores
        if needed in (self._memory, self._refused):
            return
        if self._faulted and self.growth_bytes() > 0 and self._take(cores[0], needed.total_bytes):
            self._refused = needed
            return
        for core in cores:
            self._clock.handle(Reserve(self._key, core, needed.total_bytes))
        self._memory = needed

    def take(self, core: int) -> Hit | None:
        """Return how a fault hits an execution that is about to begin."""
        self.left -= 1
        return self._take(core)

    def holds(self, hit: Hit, core: int) -> bool:
        """Return whether an execution must keep hanging."""
        return self._clock.state.faults.holds(hit.fault, self._key.pid, core)

    def release(self, core: int) -> None:
        """Report that an execution no longer hangs."""
        self._clock.handle(ReleaseFault(core, self._key.pid))

    def snapshot(self) -> ProcessState:
        """Return its state."""
        plan, state, cores = self._run.plan, self._state(), len(self._run.plan.cores)
        running = state.models[0] if state.models and state.utilization > 0 else None
        counters = self._counters(state)
        statuses = {0: 0}
        for core in counters:
            statuses[0] += core.executions
            for status, count in core.failures:
                statuses[0] -= count
                statuses[status] = statuses.get(status, 0) + count
        return ProcessState(
            pid=self._key.pid,
            start_ticks=self._key.start_ticks,
            uid=plan.uid or 0,
            command=plan.command,
            tag=plan.tag,
            runtime_version=plan.runtime_version,
            origin="synthetic",
            uses_device=plan.uses_device,
            cores=tuple(self._uses(state)),
            host_memory=state.host_memory,
            models=tuple(
                replace(model, running=index == running)
                for index in state.models
                for model in model_states(plan, index, plan.cores)
            ),
            status_counts=tuple((status, count) for status, count in statuses.items() if count),
            latency_counts=tuple(map(sum, zip(*[core.latency_counts for core in counters], strict=True)))
            if cores
            else (0,) * len(state.latency_counts),
            registered_ns=round(self._run.start_s * 1e9),
            cpu_user_ns=round(state.cpu_user_s * 1e9),
            cpu_system_ns=round(state.cpu_system_s * 1e9),
        )

    @property
    def _process(self) -> Process:
        return self._clock.state.processes[self._key]

    def _state(self) -> RunState:
        if self._latest[0] != self._clock.now_ns:
            self._latest = self._clock.now_ns, self._states.state(self._clock.now_ns / 1e9)
        return self._latest[1]

    def _counters(self, state: RunState) -> list[CoreCounters]:
        return self._shown or [scripted_counters(state, self._flops_s)] * len(self._run.plan.cores)

    def _uses(self, state: RunState) -> list[CoreUse]:
        return [
            CoreUse(
                core=core,
                busy_ns=counters.busy_ns,
                executions=counters.executions,
                flops=counters.flops,
                gpsimd_ns=0,
                executing=state.utilization > 0,
                memory=self._memory,
                model_loads=len(state.models),
                failures=counters.failures,
            )
            for core, counters in zip(self._run.plan.cores, self._counters(state), strict=True)
        ]

    def _take(self, core: int, nbytes: int = 0) -> Hit | None:
        plan, process = self._run.plan, self._process
        action = Action.ALLOCATION if nbytes else Action.EXECUTION
        victim = Victim(
            process.key.pid, process.tag, core, action, plan.has_collectives, process.cores, nbytes
        )
        hits = [effect for effect in self._clock.handle(TakeFault(victim)) if isinstance(effect, FaultTaken)]
        return hits[0].hit if hits else None
