"""Workers held against each other: skew of their steps, who keeps the others waiting. All times are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.text import plural
from neurontools.profiler.analysis.host import host_intervals
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.trace.intervals import BusyIndex
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.analysis.steps import ProcessSteps
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace

_SLOWER = 1.05
NOISE_NS = 1_000_000
_OFTEN = 0.5


@dataclass(frozen=True, slots=True)
class RankTotal:
    """One worker over the steps that all have. Times are medians of steps.

    Args:
        rank: number of the worker, or of the process if it has no rank.
        pid: its pid.
        step_ns: a step.
        wait_ns: the part in which it waits for others.
        work_ns: the rest.
        slowest_share: part of the steps (0 to 1) in which it works longest.
        is_straggler: it works longest in more than half of the steps, and over 5 % and 1 ms longer than the median
            worker. Less is what the scheduler of a busy computer costs any worker.
    """

    rank: int
    pid: int
    step_ns: int
    wait_ns: int
    work_ns: int
    slowest_share: float
    is_straggler: bool


@dataclass(frozen=True, slots=True)
class StepSkew:
    """How far apart workers are in one step.

    Args:
        step: its number.
        fastest_ns: least work of a worker: the step without waiting for others.
        slowest_ns: most work.
        slowest_rank: whose that is.
        wait_ns: all waiting, over all workers.
        works_ns: work of each worker, in order of ranks.
    """

    step: int
    fastest_ns: int
    slowest_ns: int
    slowest_rank: int
    wait_ns: int
    works_ns: tuple[int, ...] = ()

    @property
    def skew_ns(self) -> int:
        """Most work less least work."""
        return self.slowest_ns - self.fastest_ns


@dataclass(frozen=True, slots=True)
class RankReport:
    """All workers.

    Args:
        ranks: in order.
        steps: those that all workers have, without first executions where others exist.
        missing: ranks that the profile lacks.
        has_waits: whether waiting for others was recorded; without it all of a step is work.
        lost_ns: median over steps of what the slowest worker works longer than the median one, of an even number the lower one.
    """

    ranks: tuple[RankTotal, ...]
    steps: tuple[StepSkew, ...]
    missing: tuple[int, ...]
    has_waits: bool
    lost_ns: int


def compare_ranks(trace: Trace) -> RankReport:
    """Return how the workers of a run differ.

    Raises:
        ProfileError: the profile has fewer than two workers, or they have no step in common.
    """
    workers = find_steps(trace)
    if len(workers) < 2:
        missing = missing_ranks(trace)
        absent = f"; missing: {', '.join(f'rank {rank}' for rank in missing)}" if missing else ""
        raise ProfileError(
            f"the profile has {plural(len(workers), 'worker')}, so there is nothing to compare{absent}",
            "profile all workers: neuron-run --profile DIR -- torchrun --nproc-per-node N train.py",
        )
    numbers = _common(workers)
    names = [each.process if each.rank is None else each.rank for each in workers]
    duration = np.stack([each.duration_ns[numbers - each.first_number] for each in workers])
    wait = np.stack([_waits(trace, each)[numbers - each.first_number] for each in workers])
    work = duration - wait
    slowest = np.argmax(work, axis=0)
    middle = np.sort(work, axis=0)[(len(workers) - 1) // 2]  # of two workers, the faster one
    total = [
        _total(each, name, (duration[at], wait[at], work[at]), slowest == at, middle)
        for at, (each, name) in enumerate(zip(workers, names, strict=True))
    ]
    in_order = np.argsort(names, kind="stable")
    steps = [
        StepSkew(
            step=int(number),
            fastest_ns=int(work[:, at].min()),
            slowest_ns=int(work[:, at].max()),
            slowest_rank=names[int(slowest[at])],
            wait_ns=int(wait[:, at].sum()),
            works_ns=tuple(work[in_order, at].tolist()),
        )
        for at, number in enumerate(numbers)
    ]
    return RankReport(
        ranks=tuple(sorted(total, key=lambda rank: rank.rank)),
        steps=tuple(steps),
        missing=missing_ranks(trace),
        has_waits=bool(wait.any()),
        lost_ns=int(np.median(work.max(axis=0) - middle)),
    )


def missing_ranks(trace: Trace) -> tuple[int, ...]:
    """Return the ranks of the run that the profile lacks."""
    size = max((meta.world_size for meta in trace.processes), default=1)
    ranks = {meta.rank for meta in trace.processes if meta.rank is not None}
    return tuple(rank for rank in range(size) if rank not in ranks) if ranks else ()


def _common(found: Sequence[ProcessSteps]) -> Int64s:
    """Return the numbers of the steps that all workers have, without first executions where there are others."""
    first = max(each.first_number for each in found)
    last = min(each.first_number + len(each) for each in found)
    if first >= last:
        raise ProfileError("the workers have no step in common", "profile the same steps of all workers")
    numbers: Int64s = np.arange(first, last, dtype=np.int64)
    is_first = np.any([each.is_first[numbers - each.first_number] for each in found], axis=0)
    return numbers if is_first.all() else numbers[~is_first]


def _waits(trace: Trace, steps: ProcessSteps) -> Int64s:
    """Return how long each step waits for other workers."""
    start, duration = host_intervals(trace, steps.process, HostEvent.PEER_WAIT)
    edges: Int64s = np.append(steps.start_ns, steps.start_ns[-1] + steps.duration_ns[-1])
    return BusyIndex(start, duration).between(edges)


def _total(
    steps: ProcessSteps, name: int, times: tuple[Int64s, Int64s, Int64s], is_slowest: Int64s, middle: Int64s
) -> RankTotal:
    duration, wait, work = times
    share = float(is_slowest.mean())
    median = float(np.median(work))
    return RankTotal(
        rank=name,
        pid=steps.pid,
        step_ns=int(np.median(duration)),
        wait_ns=int(np.median(wait)),
        work_ns=int(median),
        slowest_share=share,
        is_straggler=share > _OFTEN
        and median > _SLOWER * float(np.median(middle))
        and median - float(np.median(middle)) > NOISE_NS,
    )
