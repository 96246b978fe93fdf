"""The printed table and the JSON report, computed from rows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.collectives.benchmark import Benchmark
    from neurontools.collectives.running import Row

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
