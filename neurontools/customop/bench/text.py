"""Format benchmark reports: one operator, or two side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.text import table, wrap
from neurontools.base.units import format_ns, format_percent, format_percentages
from neurontools.customop.bench.report import OUTPUT, TEMPORARY

if TYPE_CHECKING:
    from neurontools.customop.bench.report import AccessSite, Advice, BenchReport

_LABEL = 11
_PLACES_MAX = 6
_EXCLUDED = "arithmetic of the kernel's own loops"


def report_text(report: BenchReport, width: int) -> str:
    """Format one report; sentences are wrapped at `width`."""
    lines = [report.schema, _row("input", " ".join(report.inputs))]
    lines.append(_row("modelled", _headline(report)))
    lines += _indented(_parts_table(report, width - 4))
    if len(report.core_counts) > 1:
        lines.append(
            _row("cores", f"balance of {report.cores}: {format_percent(report.balance)}; modelled on")
        )
        lines += _indented(_cores_table(report))
    lines += _wrapped("excluded", _EXCLUDED, width)
    lines += measured_lines(report, width)
    lines += closing_lines(report, width)
    return "\n".join(lines)


def measured_lines(report: BenchReport, width: int) -> list[str]:
    """Format the times measured on this computer."""
    measured = report.measured
    if measured is None:
        return []
    calls = (
        f"{measured.calls:,} {'call' if measured.calls == 1 else 'calls'} after {measured.warm_up} to warm up"
    )
    text = (
        f"kernel {format_ns(measured.kernel_median_ns)} median, {format_ns(measured.kernel_p99_ns)} p99; call by"
        f" torch.ops {format_ns(measured.call_median_ns)} median, {format_ns(measured.call_p99_ns)} p99; {calls}, on this"
        " computer: says nothing about the device"
    )
    return _wrapped("measured", text, width)


def closing_lines(report: BenchReport, width: int) -> list[str]:
    """Format advice, warnings and notes."""
    lines: list[str] = []
    for advice in report.advice:
        lines += _wrapped("advice", advice_text(advice), width)
    for warning in report.warnings:
        lines += _wrapped("warning", warning, width)
    for note in report.notes:
        lines += _wrapped("note", note, width)
    return lines


def advice_text(advice: Advice) -> str:
    """Format advice as one line: text, location, saving."""
    saves = f" (saves about {format_ns(advice.saves_ns)})" if advice.saves_ns else ""
    place = f" at {advice.location}" if advice.location else ""
    return f"{advice.text}{place}{saves}"


def side_by_side(first: BenchReport, second: BenchReport) -> str:
    """Format two reports of the same inputs side by side."""
    named = (("first", first), ("second", second))
    names = list(dict.fromkeys(part.name for report in (first, second) for part in report.parts))
    rows: list[tuple[str, ...]] = [(" ".join(first.inputs), "first", "second", "")]
    for name in names:
        taken = [
            sum(part.modelled_ns for part in report.parts if part.name == name) for report in (first, second)
        ]
        rows.append((name, *(format_ns(time) if time else "-" for time in taken), ""))
    rows.append(
        (
            "modelled",
            format_ns(first.modelled_ns),
            format_ns(second.modelled_ns),
            ratio_text(first.modelled_ns, second.modelled_ns),
        )
    )
    if first.measured and second.measured:
        kernels = first.measured.kernel_median_ns, second.measured.kernel_median_ns
        rows.append(("measured", *map(format_ns, kernels), ratio_text(*kernels)))
    heads = [f"{name:<{_LABEL - 2}}{report.library}  {report.op}" for name, report in named]
    notes = [_row("note", f"{name}: {note}") for name, report in named for note in report.notes]
    return "\n".join([*(f"  {head}" for head in heads), *_indented(table(None, rows, "<>><"), 2), *notes])


def ratio_text(first_ns: float, second_ns: float) -> str:
    """Format the ratio of two times: `second is 83.4 times faster`."""
    if first_ns == second_ns:
        return "the same"
    faster = second_ns < first_ns
    ratio = first_ns / max(second_ns, 1) if faster else second_ns / max(first_ns, 1)
    return f"second is {ratio:.3g} times {'faster' if faster else 'slower'}"


def _headline(report: BenchReport) -> str:
    cores = "one GPSIMD core" if report.cores == 1 else f"{report.cores} GPSIMD cores"
    slowest = f", of which core {report.slowest_core} is the slowest:" if report.cores > 1 else ""
    return f"{format_ns(report.modelled_ns)} on {cores} of a NeuronCore-v2{slowest}"


def _parts_table(report: BenchReport, width: int) -> str:
    shares = format_percentages([part.share for part in report.parts])
    rows: list[tuple[str, ...]] = [("", "count", "bytes", "time", "share")]
    for part, share in zip(report.parts, shares, strict=True):
        count = f"{part.count:,}" if part.count else "-"
        nbytes = f"{part.nbytes:,}" if part.nbytes else "-"
        rows.append((part.name, count, nbytes, format_ns(part.modelled_ns), share))
        rows += map(_place_row, _places_of(report, part.name))
    return table(None, rows, "<>>>>", width=width, optional=(2, 1))


def _places_of(report: BenchReport, name: str) -> list[AccessSite]:
    places = [place for place in report.places if place.core == report.slowest_core and place.way == name]
    return sorted(places, key=lambda place: -place.modelled_ns)[:_PLACES_MAX]


def _place_row(place: AccessSite) -> tuple[str, ...]:
    names = {OUTPUT: "output", TEMPORARY: "temporary"}
    tensor = names.get(place.tensor, f"input {place.tensor}")
    # The file name is enough: advice has the path.
    name = f"  {place.location.rpartition('/')[2]} {tensor}" if place.location else f"  {tensor}"
    return name, f"{place.count:,}", f"{place.nbytes:,}", format_ns(place.modelled_ns), ""


def _cores_table(report: BenchReport) -> str:
    rows = [("", "modelled", "speed-up", "balance")]
    failing: dict[str, list[str]] = {}
    for row in report.core_counts:
        if row.modelled_ns is None or row.balance is None:
            failing.setdefault(row.problem, []).append(str(row.cores))
            continue
        speedup = "-" if row.speedup is None else f"{row.speedup:.2f}"
        rows.append((str(row.cores), format_ns(row.modelled_ns), speedup, format_percent(row.balance)))
    problems = [f"fails on {', '.join(cores)}: {problem}" for problem, cores in failing.items()]
    return "\n".join([table(None, rows, ">>>>"), *problems])


def _indented(text: str, by: int = 4) -> list[str]:
    return [" " * by + line for line in text.splitlines()]


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL - 2}}{text}"


def _wrapped(label: str, text: str, width: int) -> list[str]:
    return wrap(text, max(40, width), first_indent=_row(label, ""), indent=" " * _LABEL)
