"""Advice on a modelled time: rules over the counted memory accesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.base.units import format_binary_size, format_ns, format_percent
from neurontools.customop.bench.report import LAUNCH, OUTPUT, TEMPORARY, Advice, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.customop.bench.report import AccessSite, BenchReport

_WORTH = 0.1  # smaller shares of the time get no advice
_UNEVEN = 0.9  # a lower balance of the cores gets advice
_MOST = 0.9


@dataclass(frozen=True, slots=True)
class _Subject:
    """The input of a rule: the report, the places of its slowest core, bytes of the tensor arguments by position."""

    report: BenchReport
    slowest: tuple[AccessSite, ...]
    tensors: dict[int, int]
    multicore: bool

    def places(self, *ways: Way) -> list[AccessSite]:
        return [place for place in self.slowest if place.way in ways]

    def share(self, *ways: Way | str) -> float:
        return sum(part.share for part in self.report.parts if part.name in ways)


def advise(report: BenchReport, tensors: dict[int, int], *, multicore: bool) -> tuple[Advice, ...]:
    """Return ways to make an operator faster, the largest saving first.

    `tensors` are the bytes of its tensor arguments, by position; `multicore` is that of its library.
    """
    slowest = tuple(place for place in report.places if place.core == report.slowest_core)
    subject = _Subject(report, slowest, tensors, multicore)
    found = [advice for rule in _RULES for advice in rule(subject)]
    if not found:
        found = list(_limit(subject))
    return tuple(sorted(found, key=lambda advice: -advice.saves_ns))


def _elements(subject: _Subject) -> Iterator[Advice]:
    share = subject.share(Way.ELEMENT)
    places = subject.places(Way.ELEMENT)
    if share < _WORTH:
        return
    rates = gpsimd.rates()
    taken_ns = sum(place.modelled_ns for place in places)
    # Each tensor moves through TCM once, but never more bytes of it than were accessed.
    touched = {place.tensor: 0 for place in places}
    for place in places:
        touched[place.tensor] += place.nbytes
    whole = subject.report.tensor_bytes
    nbytes = sum(min(count, subject.tensors.get(tensor, whole)) for tensor, count in touched.items())
    better_ns = rates.transfer_ns(nbytes)
    hottest = max(places, key=lambda place: place.count)
    yield Advice(
        "element",
        f"the element accessor costs {format_percent(share)} of the time: move to TCM copies, about"
        f" {format_ns(better_ns)} for the same data ({taken_ns / max(better_ns, 1):.0f} times faster)",
        hottest.location,
        round(max(0.0, taken_ns - better_ns)),
    )
    for tensor, count in touched.items():
        nbytes = subject.tensors.get(tensor, 0)
        if 0 < nbytes <= rates.tcm_bytes // 2 and count > 2 * nbytes:
            place = max((place for place in places if place.tensor == tensor), key=lambda place: place.count)
            yield Advice(
                "fits",
                f"{_name(tensor)} ({format_binary_size(nbytes)}) fits in TCM and is read {count / nbytes:.0f} times over:"
                " copy it there once, before the loop",
                place.location,
                round(place.modelled_ns - rates.transfer_ns(nbytes)),
            )


def _unbuffered(subject: _Subject) -> Iterator[Advice]:
    share = subject.share(Way.UNBUFFERED)
    places = subject.places(Way.UNBUFFERED)
    if share < _WORTH:
        return
    better_ns = sum(gpsimd.rates().transfer_ns(place.nbytes) for place in places)
    streams = (
        "1 stream has no buffer and costs"
        if len(places) == 1
        else f"{len(places)} streams have no buffer and cost"
    )
    yield Advice(
        "streams",
        f"{streams} {format_percent(share)} of the time: at most {gpsimd.rates().fast_streams} fit in TCM"
        " at once, beside what tcm_malloc took; close streams before opening others",
        places[0].location,
        round(sum(place.modelled_ns for place in places) - better_ns),
    )


def _small_copies(subject: _Subject) -> Iterator[Advice]:
    rates = gpsimd.rates()
    by_size: dict[int, list[AccessSite]] = {}
    for place in subject.places(Way.TCM):
        usual = place.nbytes // place.count
        if place.count > 1 and usual <= rates.piece_bytes // 4 and not _copied_again(subject, place.tensor):
            by_size.setdefault(usual, []).append(place)
    for usual, places in by_size.items():
        saved_ns = sum(place.modelled_ns - rates.transfer_ns(place.nbytes) for place in places)
        if saved_ns < _WORTH * subject.report.modelled_ns:
            continue
        yield Advice(
            "tiles",
            f"{sum(place.count for place in places)} copies of {format_binary_size(usual)}: use larger tiles,"
            f" {format_binary_size(rates.piece_bytes)} takes {format_ns(rates.transfer_ns(rates.piece_bytes))} and {format_binary_size(usual)}"
            f" takes {format_ns(rates.transfer_ns(usual))}",
            ", ".join(dict.fromkeys(place.location for place in places if place.location)),
            round(saved_ns),
        )


def _copied_again(subject: _Subject, tensor: int) -> bool:
    """Return whether a tensor that fits in TCM is copied repeatedly; `_read_again` has better advice then."""
    nbytes = subject.tensors.get(tensor, 0)
    moved = sum(place.nbytes for place in subject.places(Way.TCM) if place.tensor == tensor)
    return 0 < nbytes <= gpsimd.rates().tcm_bytes // 2 and moved >= 2 * nbytes


def _read_again(subject: _Subject) -> Iterator[Advice]:
    rates = gpsimd.rates()
    for tensor, nbytes in subject.tensors.items():
        places = [place for place in subject.places(Way.TCM, Way.STREAM) if place.tensor == tensor]
        moved = sum(place.nbytes for place in places)
        taken_ns = sum(place.modelled_ns for place in places)
        if nbytes == 0 or moved < 2 * nbytes or taken_ns < _WORTH * subject.report.modelled_ns:
            continue
        times = f"{_name(tensor)} ({format_binary_size(nbytes)}) is copied {moved / nbytes:.0f} times over"
        fits = nbytes <= rates.tcm_bytes // 2
        remedy = (
            "it fits in TCM: copy it there once, before the loop"
            if fits
            else "finish all work on a piece while it is in TCM"
        )
        yield Advice(
            "fits" if fits else "again",
            f"{times}; {remedy}",
            max(places, key=lambda place: place.nbytes).location,
            round(taken_ns - rates.transfer_ns(nbytes)),
        )


def _functions(subject: _Subject) -> Iterator[Advice]:
    share = subject.share(Way.FUNCTION)
    moved = sum(place.nbytes for place in subject.places(Way.FUNCTION))
    needed = subject.report.tensor_bytes
    if share < _WORTH or moved <= needed:
        return
    rates = gpsimd.rates()
    taken_ns = sum(place.modelled_ns for place in subject.places(Way.FUNCTION))
    yield Advice(
        "functions",
        f"tensor functions cost {format_percent(share)} of the time: each one moves all its operands, {format_binary_size(moved)} in"
        f" all; one loop over pieces in TCM that does all steps moves {format_binary_size(needed)}",
        "",
        round(taken_ns - rates.transfer_ns(needed)),
    )


def _moves(subject: _Subject) -> Iterator[Advice]:
    for place in subject.places(Way.MOVE, Way.RETURNED):
        share = place.modelled_ns / subject.report.modelled_ns
        if share < _WORTH:
            continue
        text = (
            "filling a tensor costs {}: torch::empty is enough where every element is written"
            if place.way is Way.MOVE
            else "the returned tensor is copied to the output, {} of the time: write to get_dst_tensor() instead"
        )
        yield Advice("move", text.format(format_percent(share)), place.location, round(place.modelled_ns))


def _balance(subject: _Subject) -> Iterator[Advice]:
    report = subject.report
    if report.cores < 2 or report.balance >= _UNEVEN:
        return
    slowest = report.core_times[report.slowest_core]
    even_ns = sum(core.modelled_ns for core in report.core_times) / report.cores
    idle = [core.core for core in report.core_times if core.modelled_ns < slowest.modelled_ns / 100]
    rest = f"; {len(idle)} of {report.cores} cores do nothing" if idle else ""
    yield Advice(
        "balance",
        f"core {slowest.core} does {format_percent(slowest.share)} of the work{rest}: split evenly, {100 / report.cores:.3g} %"
        " for each core",
        max(subject.slowest, key=lambda place: place.modelled_ns).location if subject.slowest else "",
        round(slowest.modelled_ns - even_ns),
    )


def _more_cores(subject: _Subject) -> Iterator[Advice]:
    report = subject.report
    shared = subject.share(Way.TCM, Way.STREAM)
    if subject.multicore or shared < _MOST:
        return
    saved_ns = shared * report.modelled_ns * 7 / 8
    streams = subject.share(Way.STREAM) > subject.share(Way.TCM)
    limit = (
        "already at the stream's limit; streams work on one core only: "
        if streams
        else "1 of 8 cores works: "
    )
    yield Advice(
        "cores",
        f"{limit}TCM accessors, get_dst_tensor() and build --multicore share the work, about"
        f" {format_ns(report.modelled_ns - saved_ns)} on all 8",
        "",
        round(saved_ns),
    )


def _launch(subject: _Subject) -> Iterator[Advice]:
    share = sum(part.share for part in subject.report.parts if part.name == LAUNCH)
    if share >= 0.5:
        yield Advice(
            "launch",
            f"the launch costs {format_percent(share)} of the time: give a call more work, such as a larger batch",
        )


def _limit(subject: _Subject) -> Iterator[Advice]:
    report = subject.report
    if subject.share(Way.TCM, Way.STREAM) < _MOST:
        return
    moved = sum(place.nbytes for place in report.places if place.way in {Way.TCM, Way.STREAM})
    cores = "the core" if report.cores == 1 else f"all {report.cores} cores"
    yield Advice(
        "limit",
        f"already at the limit of copies: {cores} move {format_binary_size(moved)} for {format_binary_size(report.tensor_bytes)} of tensors,"
        f" in pieces of up to {format_binary_size(max(place.largest_bytes for place in subject.slowest))}",
    )


def _name(tensor: int) -> str:
    return {OUTPUT: "the output", TEMPORARY: "a tensor of the kernel"}.get(tensor, f"input {tensor}")


_RULES: tuple[Callable[[_Subject], Iterator[Advice]], ...] = (
    _elements,
    _unbuffered,
    _small_copies,
    _read_again,
    _functions,
    _moves,
    _balance,
    _more_cores,
    _launch,
)
