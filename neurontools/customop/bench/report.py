"""Results of a benchmark as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.base.text import table, wrap
from neurontools.base.units import format_ns, format_percent, format_percentages

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPUTE = "arithmetic of tensor functions"
LAUNCH = "launch"
OUTPUT = -2
TEMPORARY = -1
_LABEL = 11
_PLACES_MAX = 6
_EXCLUDED = "arithmetic of the kernel's own loops"


@dataclass(frozen=True, slots=True)
class TimePart:
    """A part of the modelled time of the slowest core.

    Args:
        name: name of the part.
        count: number of accesses, copies or launches.
        nbytes: bytes of these.
        modelled_ns: modelled time.
        share: share of the total time, 0 to 1; the shares of all parts add up to 1.
    """

    name: str
    count: int
    nbytes: int
    modelled_ns: float
    share: float


@dataclass(frozen=True, slots=True)
class CoreTime:
    """The modelled time of one core, without the launch, and its share of the time of all cores."""

    core: int
    modelled_ns: float
    share: float


@dataclass(frozen=True, slots=True)
class CoreCount:
    """The operator on a number of cores.

    Args:
        cores: number of cores.
        modelled_ns: modelled time, None when the operator fails.
        speedup: speed relative to one core.
        balance: mean time of the cores divided by that of the slowest; 1 when all take the same time.
        problem: why the operator fails, "" when it succeeds.
    """

    cores: int
    modelled_ns: int | None
    speedup: float | None
    balance: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times measured on this computer; they do not predict the device.

    Args:
        calls: number of timed calls.
        warm_up: number of calls before them.
        kernel_median_ns: median time of the kernel alone.
        kernel_p99_ns: 99th percentile of the kernel alone.
        kernel_best_ns: shortest time of the kernel alone.
        call_median_ns: median time of a call by torch.ops, copies of tensors included.
        call_p99_ns: 99th percentile of such calls.
    """

    calls: int
    warm_up: int
    kernel_median_ns: int
    kernel_p99_ns: int
    kernel_best_ns: int
    call_median_ns: int
    call_p99_ns: int


@dataclass(frozen=True, slots=True)
class Advice:
    """One way to make an operator faster.

    Args:
        kind: name of the rule, one word.
        text: one sentence.
        location: `file:line`, "" when it concerns no line.
        saves_ns: estimated saving of modelled time, 0 where it cannot be estimated.
    """

    kind: str
    text: str
    location: str = ""
    saves_ns: int = 0


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The benchmark of one operator with one set of inputs.

    Args:
        op: qualified name.
        schema: torch schema.
        library: path of its library.
        inputs: its inputs, in the notation of `neuron-customop run`.
        elements: elements of all tensors, the output included.
        tensor_bytes: their bytes.
        cores: number of cores.
        modelled_ns: modelled device time of a call, without the arithmetic of the kernel's own loops.
        slowest_core: the core that `parts` describes.
        parts: the parts of its time.
        core_times: the time of each core.
        core_counts: the operator on other numbers of cores; one row for a library that is not multicore.
        places: memory accesses by place in the source.
        measured: None when nothing was timed.
        advice: ways to make it faster, the largest saving first.
        warnings: warnings of the checks.
        notes: limits of the model for this operator.
    """

    op: str
    schema: str
    library: str
    inputs: tuple[str, ...]
    elements: int
    tensor_bytes: int
    cores: int
    modelled_ns: int
    slowest_core: int
    parts: tuple[TimePart, ...]
    core_times: tuple[CoreTime, ...]
    core_counts: tuple[CoreCount, ...]
    places: tuple[AccessSite, ...]
    measured: Measured | None
    advice: tuple[Advice, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def balance(self) -> float:
        """Mean time of the cores divided by that of the slowest."""
        return mean_to_slowest([core.modelled_ns for core in self.core_times])


def mean_to_slowest(times: Sequence[float]) -> float:
    """Return the mean of the cores' times divided by the largest; 1 where nothing takes time."""
    slowest = max(times, default=0.0)
    return sum(times) / len(times) / slowest if slowest else 1.0


class Way(StrEnum):
    """How a kernel accesses a tensor, in the order of `neurontools::Way` in `counting.hpp`."""

    ELEMENT = "element accesses"
    STREAM = "stream copies"
    TCM = "TCM copies"
    FUNCTION = "tensor functions"
    MOVE = "moves in HBM"
    RETURNED = "returned tensor"
    UNBUFFERED = "streams without a buffer"


@dataclass(frozen=True, slots=True)
class AccessSite:
    """Accesses of one place in the source to one tensor on one core.

    Args:
        way: kind of access.
        core: GPSIMD core.
        tensor: position of the argument, -1 for a tensor that the kernel made, -2 for the output.
        count: number of accesses or copies.
        nbytes: bytes of these.
        largest_bytes: bytes of the largest access or copy.
        location: `file:line` in the user's sources, "" when unknown.
    """

    way: Way
    core: int
    tensor: int
    count: int
    nbytes: int
    largest_bytes: int
    location: str

    @property
    def modelled_ns(self) -> float:
        """Modelled time of the accesses."""
        rates = gpsimd.rates()
        match self.way:
            case Way.ELEMENT | Way.UNBUFFERED:
                return self.count * rates.element_access_ns
            case Way.MOVE | Way.RETURNED:
                return self.count * rates.move_latency_ns + self.nbytes * rates.move_ns_per_byte
            case _:
                return self.count * rates.transfer_latency_ns + self.nbytes * rates.transfer_ns_per_byte


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
