"""Running a benchmark, and its rows as a table and as JSON.

A row has the modelled time of a size, the iterations on the ranks, and the check.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from neurontools.collectives.benchmark import AVERAGE, Benchmark, statistic
from neurontools.collectives.checking import DataCheck, check, check_budget
from neurontools.collectives.fabric import constants
from neurontools.collectives.model import CollectiveTime, timed
from neurontools.collectives.operations import bus_factor, input_bytes, output_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.collectives.machine_ranks import Ranks


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


_GAP = "    "


@dataclass(frozen=True, slots=True)
class TableStyle:
    """How numbers are shown.

    From 2.31 on times have two places and bandwidths are in 1e9 bytes/s, as in the documents' example; before, times
    were whole microseconds under `time(us)` and bandwidths in 2**30 bytes/s.
    """

    whole_times: bool = False
    bandwidth_unit: float = 1e9
    algorithm: bool = False
    sizes: bool = False


def report_style(release: str, *, algorithm: bool = False, sizes: bool = False) -> TableStyle:
    """Return the style of a release of the real tool (`2.28` or a later one)."""
    old = release == "2.28"
    return TableStyle(old, 2**30 if old else 1e9, algorithm, sizes)


def table(rows: Sequence[Row], stats: Sequence[str], style: TableStyle) -> str:
    """Return the table and the average below it."""
    lines = _aligned([_header(stats, style), *(_cells(row, style) for row in rows)])
    average = average_bus_bandwidth(rows) / style.bandwidth_unit
    return "\n".join([*lines, f"Avg bus bandwidth:\t{average:.4f}GB/s"])


def failed_table(stats: Sequence[str], style: TableStyle, log: str) -> str:
    """Return the table of a benchmark that could not run."""
    return "\n".join([*_aligned([_header(stats, style)]), f"Failure running neuron-bench - log file {log}"])


def errors_line(count: int) -> str:
    """Return the line below everything when something failed."""
    return f"{count} errors found - test failed"


def average_bus_bandwidth(rows: Sequence[Row]) -> float:
    """Return the mean bus bandwidth of the rows in bytes/s."""
    return math.fsum(row.bus_bandwidth for row in rows) / len(rows)


def results(rows: Sequence[Row], style: TableStyle) -> list[dict[str, Any]]:
    """Return the rows as the JSON report has them."""
    return [_record(row, style) for row in rows]


def config(benchmarks: Sequence[Benchmark], machine: str | None) -> dict[str, Any]:
    """Return what was run and where. Its keys are our decision: none are published."""
    fabric = benchmarks[0].works[0].fabric
    return {
        "instance_type": fabric.instance,
        "logical_neuroncore_config": fabric.lnc,
        "machine": machine,
        "modelled": True,
        "streams": [asdict(benchmark.options) for benchmark in benchmarks],
    }


def _header(stats: Sequence[str], style: TableStyle) -> list[str]:
    sizes = ["total_input_size(B)", "total_output_size(B)"] if style.sizes else []
    times = [_time_name(name, style) for name in stats]
    algorithm = ["algorithm"] if style.algorithm else []
    return ["size(B)", "count(elems)", *sizes, "type", *times, "algbw(GB/s)", "busbw(GB/s)", *algorithm]


def _cells(row: Row, style: TableStyle) -> list[str]:
    return [
        str(row.nbytes),
        str(row.elements),
        *([str(row.input_bytes), str(row.output_bytes)] if style.sizes else []),
        row.datatype,
        *(str(_microseconds(time_s, style)) for _, time_s in row.times_s),
        f"{row.algorithm_bandwidth / style.bandwidth_unit:.2f}",
        f"{row.bus_bandwidth / style.bandwidth_unit:.2f}",
        *([row.algorithm] if style.algorithm else []),
    ]


def _record(row: Row, style: TableStyle) -> dict[str, Any]:
    times = {_time_name(name, style): _microseconds(time_s, style) for name, time_s in row.times_s}
    record: dict[str, Any] = {
        "size(B)": row.nbytes,
        "count(elems)": row.elements,
        "type": row.datatype,
        "algbw(GB/s)": round(row.algorithm_bandwidth / style.bandwidth_unit, 2),
        "busbw(GB/s)": round(row.bus_bandwidth / style.bandwidth_unit, 2),
        **times,
    }
    if style.sizes:
        record |= {"total_input_size(B)": row.input_bytes, "total_output_size(B)": row.output_bytes}
    if style.algorithm:
        record["algorithm"] = row.algorithm
    if row.checks:
        record["check"] = "passed" if row.is_right else "failed"
    return record


def _time_name(name: str, style: TableStyle) -> str:
    return "time(us)" if style.whole_times and name == "avg" else f"time:{name}(us)"


def _microseconds(time_s: float, style: TableStyle) -> float:
    return round(time_s * 1e6) if style.whole_times else round(time_s * 1e6, 2)


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [_GAP.join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
