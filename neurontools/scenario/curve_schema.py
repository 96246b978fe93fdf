"""Curves and latency distributions as a scenario writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.scenario.curves import NOTHING, Constant, Curve, Noise, Pieces, Ramp, Sine, Sum
from neurontools.scenario.latency import Latency
from neurontools.scenario.problems import suggestion
from neurontools.scenario.quantities import (
    DURATION_FORM,
    PERCENT_FORM,
    duration,
    number,
    percent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.scenario.nodes import Item, Section

    Convert = Callable[[str], float]

KINDS = ("constant", "ramp", "sine", "steps", "noise", "sum")
_A_CURVE = "a value or a curve such as {curve: ramp, from: 0, to: 90, over: 60s}"
_P99_OF_P50 = 3.0


def curve_of(item: Item | None, convert: Convert, form: str, greatest: float | None = None) -> Curve:
    """Return the curve that a value of the file describes.

    Args:
        item: a single value, or a mapping with `curve`; None gives a curve that is always 0.
        convert: what reads a level of this quantity.
        form: what such a level looks like, for messages.
        greatest: what the quantity can't exceed.
    """
    if item is None:
        return NOTHING
    before = len(item.problems)
    curve = _curve(item, convert, form)
    if len(item.problems) == before:
        _check_bounds(item, curve, greatest)
    return curve


def latencies_of(item: Item | None) -> tuple[tuple[float, Latency], ...]:
    """Return the latency distributions of a value of the file: one, or a list of them with `from`."""
    if item is None:
        return ()
    if not item.is_list:
        return ((0.0, _latency(item.section("a mapping such as {p50: 12ms, p99: 40ms}"))),)
    found = []
    for entry in item.items("a list"):
        section = entry.section("a mapping such as {from: 5m, p50: 12ms, p99: 40ms}")
        found.append((section.scalar("from", duration, DURATION_FORM, 0.0), _latency(section)))
    starts = [start_s for start_s, _ in found]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        item.wrong("expected distributions in order of time, the first one from 0s")
    return tuple(found)


def _curve(item: Item, convert: Convert, form: str) -> Curve:
    if item.is_scalar:
        return Constant(item.scalar(convert, form, 0.0))
    section = item.section(_A_CURVE)
    named = section.need("curve")
    if named is None:
        return NOTHING
    kind = named.scalar(str, "the name of a curve", "")
    if kind not in KINDS:
        named.wrong(f"unknown curve {kind!r}; {suggestion(kind, KINDS)}")
        return NOTHING
    curve = _READERS[kind](section, convert, form)
    section.finish()
    return curve


def _constant(section: Section, convert: Convert, form: str) -> Curve:
    return Constant(_level(section, "value", convert, form))


def _ramp(section: Section, convert: Convert, form: str) -> Curve:
    start, end = _level(section, "from", convert, form), _level(section, "to", convert, form)
    return Ramp(start, end, _length(section, "over"))


def _sine(section: Section, convert: Convert, form: str) -> Curve:
    low, high = _level(section, "low", convert, form), _level(section, "high", convert, form)
    phase = section.scalar("phase", number, "a part of a period, 0 to 1", 0.0)
    if low > high:
        section.item.wrong("'low' is greater than 'high'")
    return Sine(low, high, _length(section, "period"), phase)


def _noise(section: Section, convert: Convert, form: str) -> Curve:
    mean, amplitude = _level(section, "mean", convert, form), _level(section, "amplitude", convert, form)
    return Noise(mean, amplitude, _length(section, "period"))


def _steps(section: Section, convert: Convert, form: str) -> Curve:
    steps = section.need("steps")
    entries = [] if steps is None else steps.items("a list of pairs [time, value]")
    pairs: list[tuple[float, float]] = []
    for entry in entries:
        pair = entry.items("a pair [time, value]")
        if len(pair) == 2:
            pairs.append((pair[0].scalar(duration, DURATION_FORM, 0.0), pair[1].scalar(convert, form, 0.0)))
        elif entry.is_list:
            entry.wrong(f"expected a pair [time, value], found a list of {len(pair)}")
    every = section.get("every")
    every_s = None if every is None else every.scalar(duration, DURATION_FORM, 1.0)
    times = [time_s for time_s, _ in pairs]
    if steps is not None and (not times or times[0] != 0 or times != sorted(set(times))):
        steps.wrong("expected steps in order of time, the first one at 0s")
        return NOTHING
    if every_s is not None and times and every_s <= times[-1]:
        section.item.wrong("'every' must be later than the last step")
        return NOTHING
    if not pairs:
        return NOTHING
    ends = [*times[1:], times[-1] + 1.0 if every_s is None else every_s]
    pieces = [(end_s - time_s, Constant(level)) for (time_s, level), end_s in zip(pairs, ends, strict=True)]
    return Pieces(pieces, None if every_s is None else 0)


def _sum(section: Section, convert: Convert, form: str) -> Curve:
    parts = section.need("of")
    entries = [] if parts is None else parts.items("a list of curves")
    return Sum(tuple(_curve(entry, convert, form) for entry in entries)) if entries else NOTHING


_READERS = {
    "constant": _constant,
    "ramp": _ramp,
    "sine": _sine,
    "steps": _steps,
    "noise": _noise,
    "sum": _sum,
}


def _level(section: Section, name: str, convert: Convert, form: str) -> float:
    found = section.need(name)
    return 0.0 if found is None else found.scalar(convert, form, 0.0)


def _length(section: Section, name: str) -> float:
    found = section.need(name)
    if found is None:
        return 1.0
    length_s = found.scalar(duration, DURATION_FORM, 1.0)
    if length_s <= 0:
        found.wrong(f"expected {DURATION_FORM}, longer than 0")
        return 1.0
    return length_s


def _check_bounds(item: Item, curve: Curve, greatest: float | None) -> None:
    if curve.low < -1e-9 * max(1.0, curve.high):
        item.wrong(f"falls to {curve.low:g}; the least is 0")
    if greatest is not None and curve.high > greatest * (1 + 1e-9):
        item.wrong(f"rises to {curve.high:g}; the greatest is {greatest:g}")


def _latency(section: Section) -> Latency:
    p50_s = _length(section, "p50")
    before = len(section.item.problems)
    p99_s = section.scalar("p99", duration, DURATION_FORM, p50_s * _P99_OF_P50)
    if p99_s < p50_s and len(section.item.problems) == before and section.get("p50") is not None:
        section.item.wrong("'p99' is less than 'p50'")
    p99_s = max(p99_s, p50_s)
    share, factor = 0.0, 1.0
    tail = section.get("tail")
    if tail is not None:
        inner = tail.section("a mapping such as {share: 1%, factor: 10}")
        share = inner.scalar("share", percent, PERCENT_FORM, 0.0) / 100
        factor = inner.scalar("factor", number, "a number of at least 1", 1.0)
        if share > 0.5 or factor < 1:
            tail.wrong("expected a share of at most 50% and a factor of at least 1")
            share, factor = 0.0, 1.0
        inner.finish()
    section.finish()
    return Latency(p50_s, p99_s, share, factor)
