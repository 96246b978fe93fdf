"""Running a benchmark: for every size the modelled time, the iterations on the ranks, and the check."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.collectives.benchmark import AVERAGE, statistic
from neurontools.collectives.checking import DataCheck, check, check_budget
from neurontools.collectives.fabric import constants
from neurontools.collectives.model import timed
from neurontools.collectives.operations import bus_factor, input_bytes, output_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.collectives.benchmark import Benchmark
    from neurontools.collectives.machine_ranks import Ranks
    from neurontools.collectives.model import CollectiveTime

_STRAGGLER_SHARE = 0.03
_STRAGGLER_FACTOR = 1.06


def iteration_times(mean_s: float, count: int, seed: str) -> tuple[float, ...]:
    """Return modelled seconds of `count` iterations whose mean is `mean_s`."""
    chance = random.Random(seed)  # noqa: S311  nothing secret
    factors = [
        chance.lognormvariate(0.0, constants().jitter)
        * (_STRAGGLER_FACTOR if chance.random() < _STRAGGLER_SHARE else 1.0)
        for _ in range(count)
    ]
    scale = mean_s * count / math.fsum(factors)
    return tuple(factor * scale for factor in factors)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. Times in seconds by statistic, bandwidths in bytes/s, sizes in bytes."""

    nbytes: int
    elements: int
    datatype: str
    times_s: tuple[tuple[str, float], ...]
    algorithm_bandwidth: float
    bus_bandwidth: float
    algorithm: str
    input_bytes: int
    output_bytes: int
    checks: tuple[DataCheck, ...]

    @property
    def is_right(self) -> bool:
        """Whether no check found a wrong result."""
        return all(report.ok for report in self.checks)


def run(
    benchmark: Benchmark, ranks: Ranks, on_progress: Callable[[int, int, str], None] = lambda *_: None
) -> Iterator[Row]:
    """Yield the rows of a benchmark; `on_progress` gets how much of how much is done, and of what.

    Raises:
        MissingDependencyError: --check without numpy.
    """
    for number, nbytes in enumerate(benchmark.sizes):
        on_progress(number, len(benchmark.sizes), f"size {nbytes}")
        times = [timed(work, nbytes, benchmark.algorithm) for work in benchmark.works]
        yield _row(benchmark, nbytes, times, ranks, on_progress)


def _row(
    benchmark: Benchmark,
    nbytes: int,
    times: list[CollectiveTime],
    ranks: Ranks,
    on_progress: Callable[[int, int, str], None],
) -> Row:
    options, first = benchmark.options, times[0]
    measured = _iterations(benchmark, nbytes, times, options.iters, "measured")
    warm_up = _iterations(benchmark, nbytes, times, options.warmup_iters, "warm-up")
    executed = (warm_up + measured) * options.ops_per_iter
    checks, slower = ranks.execute(executed, lambda: _checks(benchmark, nbytes, times, on_progress))
    if slower:
        last = len(slower) - 1
        measured = tuple(
            time_s * slower[min(number, last)] for number, time_s in enumerate(measured, len(warm_up))
        )
    mean_s = statistic(AVERAGE, measured)
    return Row(
        nbytes=nbytes,
        elements=nbytes // benchmark.kind.nbytes,
        datatype=benchmark.kind.value,
        times_s=tuple((name, statistic(name, measured)) for name in benchmark.stats),
        algorithm_bandwidth=nbytes / mean_s,
        bus_bandwidth=nbytes / mean_s * bus_factor(benchmark.operation, first.ranks),
        algorithm=first.algorithm.value,
        input_bytes=input_bytes(benchmark.operation, nbytes, first.ranks),
        output_bytes=output_bytes(benchmark.operation, nbytes, first.ranks),
        checks=checks,
    )


def _iterations(
    benchmark: Benchmark, nbytes: int, times: list[CollectiveTime], count: int, phase: str
) -> tuple[float, ...]:
    if not count:
        return ()
    what = (
        f"{benchmark.options.seed}/{phase}/{benchmark.operation}/{times[0].ranks}/{nbytes}/{benchmark.kind}"
    )
    factors = iteration_times(1.0, count, what)
    return tuple(factor * times[index % len(times)].time_s for index, factor in enumerate(factors))


def _checks(
    benchmark: Benchmark,
    nbytes: int,
    times: list[CollectiveTime],
    on_progress: Callable[[int, int, str], None],
) -> tuple[DataCheck, ...]:
    options = benchmark.options
    if options.check is None:
        return ()
    budget = check_budget(options.check_bytes)
    return tuple(
        check(
            work,
            benchmark.kind,
            time.algorithm,
            nbytes,
            pattern=options.check,
            seed=options.seed,
            budget_bytes=budget,
            on_step=lambda done, total: on_progress(done, total, f"checking size {nbytes}"),
        )
        for work, time in zip(benchmark.works, times, strict=True)
    )
