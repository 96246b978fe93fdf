"""The state of a scenario's process at a scenario time: a pure function of the scenario, its seed and the time.

Times and counts are the scenario's. A runner at another speed divides the three times (busy, FLOPs with
it, host CPU) by the speed, so that shares of wall time stay those of the scenario.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.machine.snapshot import LATENCY_BUCKETS, MemoryUse
from neurontools.scenario.curves import Constant, unit
from neurontools.scenario.model import Latency
from neurontools.scenario.timeline import held_memory, loaded_models

if TYPE_CHECKING:
    from neurontools.scenario.curves import Curve
    from neurontools.scenario.timeline import ProcessRun

_NO_LATENCY = (0,) * LATENCY_BUCKETS
_USUAL_LATENCY = ((0.0, Latency(0.01, 0.02)),)


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
            host_memory=_host_memory(work.host_memory, active_s),
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


def _host_memory(curves: tuple[tuple[str, Curve], ...], age_s: float) -> MemoryUse:
    return MemoryUse(**{name: int(curve.value(age_s)) for name, curve in curves})
