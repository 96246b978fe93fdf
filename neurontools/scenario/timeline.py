"""The timeline of a scenario, planned in advance: runs with crashes and restarts, faults, and the state of each run.

The state at a scenario time is a pure function of the scenario, its seed and the time. Times and counts are the
scenario's. A runner at another speed divides the three times (busy, FLOPs with it, host CPU) by the speed, so that
shares of wall time stay those of the scenario.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.machine.devices import Layout
from neurontools.machine.instances import catalogue
from neurontools.machine.snapshot import LATENCY_BUCKETS, MemoryCategory, MemoryUse
from neurontools.scenario.curves import Constant, unit
from neurontools.scenario.model import Latency

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.scenario.curves import Curve
    from neurontools.scenario.model import FaultPlan, ModelPlan, ProcessPlan, Scenario

MAX_RUNS = 10_000
NRT_RESOURCE = 4
OOM_LINGER_S = 2.0
# Curves of sizes change in steps, as allocations do; each step is a message to the daemon.
GRANULE_BYTES = 1 << 20
_STEP_S = 0.25

_NO_LATENCY = (0,) * LATENCY_BUCKETS
_USUAL_LATENCY = ((0.0, Latency(0.01, 0.02)),)


class RunEnd(StrEnum):
    """Why a run ends."""

    STOP = "stop"
    CRASH = "crash"
    EXIT = "exit"
    OUT_OF_MEMORY = "out of memory"
    SCENARIO = "end of scenario"


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """One run of a process, from `start_s` to `end_s` of scenario time.

    `attempt` counts from 0. From `fails_s` on it is idle: it has failed once with NRT status `status`.
    `process` is its index in `Scenario.processes`.
    """

    process: int
    plan: ProcessPlan
    attempt: int
    start_s: float
    end_s: float
    end: RunEnd
    fails_s: float | None = None
    status: int | None = None

    @property
    def seed(self) -> str:
        """The seed of this run."""
        return f"{self.plan.seed}/{self.attempt}"


class ProcessRuns:
    """The runs of all processes of a scenario."""

    def __init__(self, runs: tuple[tuple[ProcessRun, ...], ...]) -> None:
        self.by_process = runs
        self._starts = [[run.start_s for run in process_runs] for process_runs in runs]

    def at(self, time_s: float) -> list[ProcessRun]:
        """Return the runs at a scenario time, in the order of `Scenario.processes`."""
        found = []
        for starts, process_runs in zip(self._starts, self.by_process, strict=True):
            index = bisect_right(starts, time_s) - 1
            if index >= 0 and time_s < process_runs[index].end_s:
                found.append(process_runs[index])
        return found

    def __iter__(self) -> Iterator[ProcessRun]:
        for process_runs in self.by_process:
            yield from process_runs


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """What happens at one scenario time: first ends, then starts, then faults."""

    at_s: float
    ends: tuple[ProcessRun, ...]
    starts: tuple[ProcessRun, ...]
    faults: tuple[FaultPlan, ...]


class ScenarioTimeline:
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


def iterate_runs(
    process: int, plan: ProcessPlan, scenario: Scenario, *, after: ProcessRun | None = None
) -> Iterator[ProcessRun]:
    """Yield the runs of a process as if device memory had no limit.

    Args:
        process: its index in the scenario.
        plan: the process.
        scenario: gives duration and seed.
        after: yield only the runs that follow this one.
    """
    last_s = scenario.duration_s if plan.stop_s is None else min(plan.stop_s, scenario.duration_s)
    run = after
    if run is None:
        if plan.start_s >= last_s:
            return
        run = _make_run(process, plan, 0, plan.start_s, last_s)
        yield run
    while run.attempt < MAX_RUNS:
        restart = plan.restart
        again = run.end in {RunEnd.CRASH, RunEnd.EXIT, RunEnd.OUT_OF_MEMORY}
        if not again or restart is None or (restart.times is not None and run.attempt >= restart.times):
            return
        delay_s = min(restart.delay_s * restart.backoff ** min(run.attempt, 64), restart.longest_s)
        if run.end_s + delay_s >= last_s:
            return
        run = _make_run(process, plan, run.attempt + 1, run.end_s + delay_s, last_s)
        yield run


def _make_run(process: int, plan: ProcessPlan, attempt: int, start_s: float, last_s: float) -> ProcessRun:
    stopped = RunEnd.SCENARIO if plan.stop_s is None else RunEnd.STOP
    ending = plan.ending
    if ending is None:
        return ProcessRun(process, plan, attempt, start_s, last_s, stopped)
    chance = unit(plan.seed, "lifetime", str(attempt))
    length_s = ending.shortest_s + (ending.longest_s - ending.shortest_s) * chance
    if start_s + length_s >= last_s:
        return ProcessRun(process, plan, attempt, start_s, last_s, stopped)
    if ending.status is None:
        return ProcessRun(process, plan, attempt, start_s, start_s + length_s, RunEnd.EXIT)
    fails_s = start_s + max(0.0, length_s - ending.linger_s)
    return ProcessRun(
        process, plan, attempt, start_s, start_s + length_s, RunEnd.CRASH, fails_s, ending.status
    )


def loaded_models(plan: ProcessPlan, age_s: float) -> list[tuple[int, ModelPlan]]:
    """Return the models that are loaded at an age, with their index in the plan."""
    return [
        (index, model)
        for index, model in enumerate(plan.models)
        if model.load_s <= age_s and (model.unload_s is None or age_s < model.unload_s)
    ]


def needed_memory(plan: ProcessPlan, age_s: float) -> MemoryUse:
    """Return the device memory that a process needs on each of its cores."""
    amounts = dict.fromkeys(MemoryCategory, 0)
    for name, curve in plan.work.memory:
        wanted = curve.value(age_s)
        steady = isinstance(curve, Constant)
        amounts[MemoryCategory(name)] = (
            int(wanted) if steady else int(wanted) // GRANULE_BYTES * GRANULE_BYTES
        )
    scratchpad = 0
    for _, model in loaded_models(plan, age_s):
        amounts[MemoryCategory.MODEL_CODE] += model.code_bytes
        amounts[MemoryCategory.CONSTANTS] += model.constant_bytes
        scratchpad = max(scratchpad, model.scratchpad_bytes)
    amounts[MemoryCategory.MODEL_SHARED_SCRATCHPAD] += scratchpad
    return MemoryUse(**{category.value: nbytes for category, nbytes in amounts.items()})


def held_memory(run: ProcessRun, time_s: float) -> MemoryUse:
    """Return the device memory that a run holds on each of its cores; after a refused allocation that of before."""
    if run.fails_s is None or time_s < run.fails_s:
        return needed_memory(run.plan, time_s - run.start_s)
    age_s = run.fails_s - _STEP_S - run.start_s
    return needed_memory(run.plan, age_s) if age_s >= 0 else MemoryUse()


def plan_runs(scenario: Scenario, layout: Layout) -> ProcessRuns:
    """Return the runs of a scenario's processes; a run whose device is full ends early."""
    runs = [list(iterate_runs(index, plan, scenario)) for index, plan in enumerate(scenario.processes)]
    for device in _tight_devices(scenario, layout):
        _fill(runs, device, scenario, layout)
    return ProcessRuns(tuple(map(tuple, runs)))


def _tight_devices(scenario: Scenario, layout: Layout) -> list[int]:
    most = [0.0] * layout.device_count
    for plan in scenario.processes:
        core_bytes = sum(curve.high for _, curve in plan.work.memory)
        core_bytes += sum(
            model.code_bytes + model.constant_bytes + model.scratchpad_bytes for model in plan.models
        )
        for core in plan.cores:
            most[layout.device_of(core)] += core_bytes
    return [device for device, nbytes in enumerate(most) if nbytes > layout.memory_bytes]


def _fill(runs: list[list[ProcessRun]], device: int, scenario: Scenario, layout: Layout) -> None:
    # Step through time: when the device is full, the process that grew most in this step is refused.
    tenants = [
        (index, sum(layout.device_of(core) == device for core in plan.cores))
        for index, plan in enumerate(scenario.processes)
        if any(layout.device_of(core) == device for core in plan.cores)
    ]
    before = dict.fromkeys([index for index, _ in tenants], 0)
    for step in range(int(scenario.duration_s / _STEP_S) + 1):
        time_s = step * _STEP_S
        now: dict[int, int] = {}
        living: dict[int, ProcessRun] = {}
        for index, cores in tenants:
            run = _running_at(runs[index], time_s)
            now[index] = 0 if run is None else cores * held_memory(run, time_s).total_bytes
            if run is not None:
                living[index] = run
        while sum(now.values()) > layout.memory_bytes:
            growing = [index for index, run in living.items() if run.fails_s is None or time_s < run.fails_s]
            if not growing:
                break
            victim = max(growing, key=lambda index: (now[index] - before[index], index))
            run = replace(
                living[victim],
                end_s=min(living[victim].end_s, time_s + OOM_LINGER_S),
                end=RunEnd.OUT_OF_MEMORY,
                fails_s=time_s,
                status=NRT_RESOURCE,
            )
            runs[victim] = [
                *runs[victim][: run.attempt],
                run,
                *iterate_runs(victim, run.plan, scenario, after=run),
            ]
            living[victim] = run
            now[victim] = min(before[victim], now[victim])
        before = now


def _running_at(runs: list[ProcessRun], time_s: float) -> ProcessRun | None:
    return next((run for run in reversed(runs) if run.start_s <= time_s < run.end_s), None)


@dataclass(frozen=True, slots=True)
class RunState:
    """What a process has done so far, the same on each of its cores, and what it holds now.

    `utilization` is percent at this moment. `executions` counts failed ones too, which `failures` lists as pairs of
    NRT status number and count. `models` are the indexes of the loaded models in the plan.
    """

    utilization: float
    busy_s: float
    executions: int
    failures: tuple[tuple[int, int], ...]
    latency_counts: tuple[int, ...]
    memory: MemoryUse
    host_memory: MemoryUse
    models: tuple[int, ...]
    cpu_user_s: float
    cpu_system_s: float


class RunClock:
    """Computes the states of one run."""

    __slots__ = ("_offset", "_rests", "_segments", "_work", "run")

    def __init__(self, run: ProcessRun) -> None:
        self.run = run
        self._work = work = run.plan.work
        self._offset = int(unit(run.seed, "latency") * 2**20)
        self._rests = [
            unit(run.seed, "executions"),
            *(unit(run.seed, str(status)) for status, _ in work.errors),
        ]
        self._segments = run.plan.latencies

    @property
    def is_still(self) -> bool:
        """Whether the state never changes during the run."""
        work = self._work
        busy = (work.utilization, work.executions, work.cpu_user, work.cpu_system)
        sizes = [curve for _, curve in (*work.memory, *work.host_memory)]
        return (
            not any(curve.high for curve in (*busy, *(curve for _, curve in work.errors)))
            and all(isinstance(curve, Constant) for curve in sizes)
            and not self.run.plan.models
            and self.run.fails_s is None
        )

    def state(self, time_s: float) -> RunState:
        """Return the state at a scenario time within the run, or at its very end."""
        run, work = self.run, self._work
        age_s = max(0.0, min(time_s, run.end_s) - run.start_s)
        failed = run.fails_s is not None and time_s >= run.fails_s
        active_s = min(age_s, run.fails_s - run.start_s) if run.fails_s is not None else age_s
        executions, failures = self._executions(active_s, failed=failed)
        return RunState(
            utilization=0.0 if failed else work.utilization.value(age_s),
            busy_s=work.utilization.integral(active_s) / 100,
            executions=executions,
            failures=failures,
            latency_counts=self._latencies(active_s, executions),
            memory=held_memory(run, time_s),
            host_memory=MemoryUse(**{name: int(curve.value(active_s)) for name, curve in work.host_memory}),
            models=tuple(index for index, _ in loaded_models(run.plan, active_s)),
            cpu_user_s=work.cpu_user.integral(active_s) / 100,
            cpu_system_s=work.cpu_system.integral(active_s) / 100,
        )

    def _executions(self, active_s: float, *, failed: bool) -> tuple[int, tuple[tuple[int, int], ...]]:
        counts = {
            status: _count(curve, active_s, rest)
            for (status, curve), rest in zip(self._work.errors, self._rests[1:], strict=True)
        }
        if failed and self.run.status is not None:
            counts[self.run.status] = counts.get(self.run.status, 0) + 1
        failures = tuple(sorted((status, count) for status, count in counts.items() if count))
        successes = _count(self._work.executions, active_s, self._rests[0])
        return successes + sum(counts.values()), failures

    def _latencies(self, active_s: float, executions: int) -> tuple[int, ...]:
        if not executions:
            return _NO_LATENCY
        segments = self._segments or _USUAL_LATENCY
        if len(segments) == 1:
            return segments[0][1].counts(executions, self._offset)
        return self._segmented(segments, active_s, executions)

    def _segmented(
        self, segments: tuple[tuple[float, Latency], ...], active_s: float, executions: int
    ) -> tuple[int, ...]:
        # Executions before a change of distribution keep their latency.
        total = [0] * LATENCY_BUCKETS
        ends = [start_s for start_s, _ in segments[1:]]
        done = 0
        for (_, latency), end_s in zip(segments, [*ends, math.inf], strict=True):
            until = executions
            if end_s < active_s:
                until = min(executions, self._executions(end_s, failed=False)[0])
            for bucket, count in enumerate(latency.counts(until - done, self._offset + done)):
                total[bucket] += count
            done = until
            if end_s >= active_s:
                break
        return tuple(total)


def _count(curve: Curve, time_s: float, rest: float) -> int:
    # The rest (0..1) keeps processes with one and the same rate from counting at the same moment.
    return math.floor(curve.integral(time_s) + rest) if curve.high else 0
