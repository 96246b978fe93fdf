"""The recording of a scenario without a machine: the same bytes for the same seed.

It runs neuron-monitor's own collector and writer on the scenario's clock, machine and host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.devices import device_states
from neurontools.machine.faults.kinds import ECC, FaultKind
from neurontools.machine.host import CpuTimes, HostSample
from neurontools.machine.machine_config import MachineConfig
from neurontools.machine.machine_names import instance_id
from neurontools.machine.protocol import SYNTHETIC_PIDS_ABOVE
from neurontools.machine.snapshot import CoreTotals, CoreUse, HardwareCounters, ProcessState, Snapshot
from neurontools.monitor.codec import format_line
from neurontools.monitor.collector import reports
from neurontools.monitor.config import (
    MetricPeriod,
    MonitorConfig,
    RuntimeSelection,
    default_config,
)
from neurontools.monitor.host_reader import VcpuSample
from neurontools.monitor.report import HostMemoryInfo
from neurontools.scenario.synthetic_process import model_states
from neurontools.scenario.timeline import RunClock, ScenarioTimeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.faults.params import FaultSpec
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.machine.snapshot import DeviceState
    from neurontools.scenario.model import FaultPlan, HostPlan, Scenario
    from neurontools.scenario.timeline import ProcessRun, RunState

_SWITCHES_PER_CPU_SECOND = 2500
# 2026-01-01T00:00:00Z, the same on every computer.
STARTED_UNIX_S = 1_767_225_600.0
_TICKS_A_SECOND = 100


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

    def processes(self, _keys: list[ProcessKey]) -> HostSample:
        return HostSample(self._clock.time_s * self._instance.vcpus, CpuTimes(0.0, 0.0), ())

    def memory(self, period_s: float) -> HostMemoryInfo:
        used = int(self._plan.memory.value(self._clock.time_s))
        return HostMemoryInfo(
            period_s=period_s, memory_total_bytes=self._instance.host_memory_bytes, memory_used_bytes=used
        )


class ScenarioSnapshots:
    """Snapshots of a scenario at any time, at speed 1.

    Args:
        timeline: the scenario.
        machine: the name of its machine; its instance id is derived from it.
    """

    def __init__(self, timeline: ScenarioTimeline, machine: str) -> None:
        self._timeline = timeline
        self._flops_s = timeline.instance.device.core.tensor_flops_s("bf16") * timeline.scenario.lnc
        self._pids = {
            (run.process, run.attempt): SYNTHETIC_PIDS_ABOVE + 1 + place
            for place, run in enumerate(sorted(timeline.runs, key=lambda run: (run.start_s, run.process)))
        }
        self._clocks: dict[tuple[int, int], RunClock] = {}
        self._gone: dict[tuple[int, int], tuple[CoreTotals, ...]] = {}
        self._frame = _frame(timeline, machine)

    def at(self, time_s: float) -> Snapshot:
        """Return the machine at a scenario time."""
        states = [(run, self._clock(run).state(time_s)) for run in self._timeline.runs.at(time_s)]
        return replace(
            self._frame,
            taken_ns=round(time_s * 1e9),
            taken_unix_s=STARTED_UNIX_S + time_s,
            devices=self._devices(states, time_s),
            processes=tuple(self._process(run, state) for run, state in states),
            core_totals=self._totals(time_s),
        )

    def _clock(self, run: ProcessRun) -> RunClock:
        key = (run.process, run.attempt)
        clock = self._clocks.get(key)
        if clock is None:
            clock = self._clocks[key] = RunClock(run)
        return clock

    def _process(self, run: ProcessRun, state: RunState) -> ProcessState:
        plan = run.plan
        running = state.models[0] if state.models and state.utilization > 0 else None
        models = [
            replace(model, running=index == running)
            for index in state.models
            for model in model_states(plan, index, plan.cores)
        ]
        return ProcessState(
            pid=self._pids[run.process, run.attempt],
            start_ticks=round(run.start_s * _TICKS_A_SECOND),
            uid=plan.uid or 0,
            command=plan.command,
            tag=plan.tag,
            runtime_version=plan.runtime_version,
            origin="synthetic",
            uses_device=plan.uses_device,
            cores=tuple(self._use(run, state, core) for core in plan.cores),
            host_memory=state.host_memory,
            models=tuple(models),
            status_counts=_statuses(state, len(plan.cores)),
            latency_counts=tuple(count * len(plan.cores) for count in state.latency_counts),
            registered_ns=round(run.start_s * 1e9),
            cpu_user_ns=round(state.cpu_user_s * 1e9),
            cpu_system_ns=round(state.cpu_system_s * 1e9),
        )

    def _use(self, run: ProcessRun, state: RunState, core: int) -> CoreUse:
        return CoreUse(
            core=core,
            busy_ns=round(state.busy_s * 1e9),
            executions=state.executions,
            flops=round(state.busy_s * self._flops_s * run.plan.work.mfu),
            gpsimd_ns=0,
            executing=state.utilization > 0,
            memory=state.memory,
            model_loads=len(state.models),
            failures=state.failures,
        )

    def _devices(self, states: list[tuple[ProcessRun, RunState]], time_s: float) -> tuple[DeviceState, ...]:
        used = [0] * len(self._frame.devices)
        for run, state in states:
            for core in run.plan.cores:
                used[self._timeline.layout.device_of(core)] += state.memory.total_bytes
        faults = [fault for fault in self._timeline.scenario.faults if fault.at_s <= time_s]
        lasting = [fault for fault in faults if _lasts(fault, time_s)]
        lost = {fault.spec.device for fault in lasting if fault.spec.kind is FaultKind.DEVICE_LOST}
        return tuple(
            replace(
                device,
                memory_used_bytes=used[device.index],
                hardware=_hardware(faults, device.index, time_s),
                lost=device.index in lost,
                links_down=down,
                connected_to=device.connected_to
                and tuple(index for index in device.connected_to if index not in down),
            )
            for device in self._frame.devices
            for down in [_links_down(lasting, device.index)]
        )

    def _totals(self, time_s: float) -> tuple[CoreTotals, ...]:
        # Totals of the ended runs by core; those of each run are computed once.
        sums: dict[int, CoreTotals] = {}
        for run in self._timeline.runs:
            if run.end_s <= time_s:
                for totals in self._final_totals(run):
                    before = sums.get(totals.core)
                    sums[totals.core] = totals if before is None else before.plus(totals)
        return tuple(sums[core] for core in sorted(sums))

    def _final_totals(self, run: ProcessRun) -> tuple[CoreTotals, ...]:
        key = (run.process, run.attempt)
        found = self._gone.get(key)
        if found is None:
            state = self._clock(run).state(run.end_s)
            uses = (self._use(run, state, core) for core in run.plan.cores)
            found = self._gone[key] = tuple(
                CoreTotals(use.core, use.busy_ns, use.executions, use.flops, 0, use.model_loads, use.failures)
                for use in uses
                if use.executions or use.model_loads
            )
            self._clocks.pop(key, None)
        return found


def _frame(timeline: ScenarioTimeline, machine: str) -> Snapshot:
    instance, scenario = timeline.instance, timeline.scenario
    return Snapshot(
        machine=machine,
        source="sim",
        instance_type=instance.name,
        instance_id=instance_id(machine, 0),
        lnc=scenario.lnc,
        lnc_applies=instance.lnc_applies,
        neuroncore_version=instance.device.core.monitor_version(scenario.lnc),
        taken_ns=0,
        taken_unix_s=STARTED_UNIX_S,
        started_unix_s=STARTED_UNIX_S,
        devices=device_states(MachineConfig(instance.name, scenario.lnc), instance),
        processes=(),
    )


def _statuses(state: RunState, cores: int) -> tuple[tuple[int, int], ...]:
    failed = sum(count for _, count in state.failures)
    counts = ((0, state.executions - failed), *state.failures)
    return tuple((status, count * cores) for status, count in counts if count and cores)


def _hardware(faults: list[FaultPlan], device: int, time_s: float) -> HardwareCounters:
    counts: dict[str, int] = {}
    for fault in faults:
        spec = fault.spec
        if spec.kind is FaultKind.ECC and spec.device == device:
            name = ECC[spec.ecc].counter.value
            counts[name] = counts.get(name, 0) + _events(spec, time_s - fault.at_s) * spec.amount
    return HardwareCounters(**counts)


def _events(spec: FaultSpec, since_s: float) -> int:
    if spec.every_s is None:
        return spec.count or 1
    lasted_s = since_s if spec.duration_s is None else min(since_s, spec.duration_s)
    events = int(lasted_s / spec.every_s + 1e-9) + 1
    return events if spec.count is None else min(events, spec.count)


def _links_down(faults: list[FaultPlan], device: int) -> tuple[int, ...]:
    links = [(fault.spec.device, fault.spec.to) for fault in faults if fault.spec.kind is FaultKind.LINK_DOWN]
    peers = {right if left == device else left for left, right in links if device in {left, right}}
    return tuple(sorted(index for index in peers if index is not None))


def _lasts(fault: FaultPlan, time_s: float) -> bool:
    return fault.spec.duration_s is None or time_s < fault.at_s + fault.spec.duration_s
