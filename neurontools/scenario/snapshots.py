"""A scenario's machine at a scenario time, without a machine: what a daemon would report if it were played."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.machine.devices import device_states
from neurontools.machine.faults.kinds import ECC, FaultKind
from neurontools.machine.hardware import CoreTotals, HardwareCounters
from neurontools.machine.kind import Kind
from neurontools.machine.naming import instance_id
from neurontools.machine.protocol import SYNTHETIC_PIDS_ABOVE
from neurontools.machine.snapshot import CoreUse, ProcessState, Snapshot
from neurontools.scenario.actor import shown_models
from neurontools.scenario.state import LifeClock

if TYPE_CHECKING:
    from neurontools.machine.faults.spec import FaultSpec
    from neurontools.machine.snapshot import DeviceState
    from neurontools.scenario.lives import Life
    from neurontools.scenario.model import FaultPlan
    from neurontools.scenario.script import Script
    from neurontools.scenario.state import LifeState

# A moment that is the same everywhere: 2026-01-01T00:00:00Z.
STARTED_UNIX_S = 1_767_225_600.0
_TICKS_A_SECOND = 100


class Snapshots:
    """Snapshots of a scenario at any time, at speed 1.

    Args:
        script: the scenario.
        machine: the name of its machine; the made-up instance id belongs to it.
    """

    def __init__(self, script: Script, machine: str) -> None:
        self._script = script
        self._flops_s = script.instance.device.core.tensor_flops_s("bf16") * script.scenario.lnc
        self._pids = {
            (life.process, life.attempt): SYNTHETIC_PIDS_ABOVE + 1 + place
            for place, life in enumerate(sorted(script.lives, key=lambda life: (life.start_s, life.process)))
        }
        self._clocks: dict[tuple[int, int], LifeClock] = {}
        self._gone: dict[tuple[int, int], tuple[CoreTotals, ...]] = {}
        self._frame = _frame(script, machine)

    def at(self, time_s: float) -> Snapshot:
        """Return the machine at a scenario time."""
        states = [(life, self._clock(life).state(time_s)) for life in self._script.lives.at(time_s)]
        return replace(
            self._frame,
            taken_ns=round(time_s * 1e9),
            taken_unix_s=STARTED_UNIX_S + time_s,
            devices=self._devices(states, time_s),
            processes=tuple(self._process(life, state) for life, state in states),
            core_totals=self._totals(time_s),
        )

    def _clock(self, life: Life) -> LifeClock:
        key = (life.process, life.attempt)
        clock = self._clocks.get(key)
        if clock is None:
            clock = self._clocks[key] = LifeClock(life)
        return clock

    def _process(self, life: Life, state: LifeState) -> ProcessState:
        plan = life.plan
        running = state.models[0] if state.models and state.utilization > 0 else None
        models = [
            replace(model, running=index == running)
            for index in state.models
            for model in shown_models(plan, index, plan.cores)
        ]
        return ProcessState(
            pid=self._pids[life.process, life.attempt],
            start_ticks=round(life.start_s * _TICKS_A_SECOND),
            uid=plan.uid or 0,
            command=plan.command,
            tag=plan.tag,
            runtime_version=plan.runtime_version,
            origin="synthetic",
            uses_device=plan.uses_device,
            cores=tuple(self._use(life, state, core) for core in plan.cores),
            host_memory=state.host_memory,
            models=tuple(models),
            status_counts=_statuses(state, len(plan.cores)),
            latency_counts=tuple(count * len(plan.cores) for count in state.latency_counts),
            registered_ns=round(life.start_s * 1e9),
            cpu_user_ns=round(state.cpu_user_s * 1e9),
            cpu_system_ns=round(state.cpu_system_s * 1e9),
        )

    def _use(self, life: Life, state: LifeState, core: int) -> CoreUse:
        return CoreUse(
            core=core,
            busy_ns=round(state.busy_s * 1e9),
            executions=state.executions,
            flops=round(state.busy_s * self._flops_s * life.plan.work.mfu),
            gpsimd_ns=0,
            executing=state.utilization > 0,
            memory=state.memory,
            model_loads=len(state.models),
            failures=state.failures,
        )

    def _devices(self, states: list[tuple[Life, LifeState]], time_s: float) -> tuple[DeviceState, ...]:
        used = [0] * len(self._frame.devices)
        for life, state in states:
            for core in life.plan.cores:
                used[self._script.layout.device_of(core)] += state.memory.total_bytes
        faults = [fault for fault in self._script.scenario.faults if fault.at_s <= time_s]
        return tuple(
            replace(
                device,
                memory_used_bytes=used[device.index],
                hardware=_hardware(faults, device.index, time_s),
                lost=any(_is_lost(fault, device.index, time_s) for fault in faults),
                links_down=down,
                connected_to=_without(device.connected_to, down),
            )
            for device in self._frame.devices
            for down in [_links_down(faults, device.index, time_s)]
        )

    def _totals(self, time_s: float) -> tuple[CoreTotals, ...]:
        # What those did that are gone, by core: added up life by life, each computed once.
        sums: dict[int, CoreTotals] = {}
        for life in self._script.lives:
            if life.end_s <= time_s:
                for totals in self._left_behind(life):
                    before = sums.get(totals.core)
                    sums[totals.core] = totals if before is None else before.plus(totals)
        return tuple(sums[core] for core in sorted(sums))

    def _left_behind(self, life: Life) -> tuple[CoreTotals, ...]:
        key = (life.process, life.attempt)
        found = self._gone.get(key)
        if found is None:
            state = self._clock(life).state(life.end_s)
            uses = (self._use(life, state, core) for core in life.plan.cores)
            found = self._gone[key] = tuple(
                CoreTotals(use.core, use.busy_ns, use.executions, use.flops, 0, use.model_loads, use.failures)
                for use in uses
                if use.executions or use.model_loads
            )
            self._clocks.pop(key, None)
        return found


def _frame(script: Script, machine: str) -> Snapshot:
    instance, scenario = script.instance, script.scenario
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
        devices=device_states(Kind(instance.name, scenario.lnc), instance),
        processes=(),
    )


def _statuses(state: LifeState, cores: int) -> tuple[tuple[int, int], ...]:
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


def _is_lost(fault: FaultPlan, device: int, time_s: float) -> bool:
    return fault.spec.kind is FaultKind.DEVICE_LOST and fault.spec.device == device and _lasts(fault, time_s)


def _links_down(faults: list[FaultPlan], device: int, time_s: float) -> tuple[int, ...]:
    ends = [
        (fault.spec.device, fault.spec.to)
        for fault in faults
        if fault.spec.kind is FaultKind.LINK_DOWN and _lasts(fault, time_s)
    ]
    others = {other if one == device else one for one, other in ends if device in {one, other}}
    return tuple(sorted(index for index in others if index is not None))


def _without(neighbours: tuple[int, ...] | None, down: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if neighbours is None else tuple(index for index in neighbours if index not in down)


def _lasts(fault: FaultPlan, time_s: float) -> bool:
    return fault.spec.duration_s is None or time_s < fault.at_s + fault.spec.duration_s
