"""Sparklines: histories as lines of text with average and peak, and one history as a chart with an axis. Pure."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from neurontools.dashboard.machine_history import MACHINE, HistorySlot, Series, summary
from neurontools.tui.top.numbers import short_latency, short_rate
from neurontools.tui.widgets.bars import blocks
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width
from neurontools.tui.widgets.lines import Line, Role, Span, fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.tui.top.model import TopModel

SPANS = ("last minute", "last hour")
_VALUES_WIDTH = 15
_FEWEST_MINUTES = 5
_BETWEEN = 2
_NARROW_GRAPH = 30
_LEAST_GRAPH = 10
_AXIS_WIDTH = 7


def values_of(slots: Sequence[HistorySlot | None], *, peaks: bool = False) -> tuple[float | None, ...]:
    """Return the means (or peaks) of slots, None where there was no sample."""
    return tuple(None if slot is None else slot.peak if peaks else slot.mean for slot in slots)


def merged(
    columns: Sequence[Sequence[HistorySlot | None]], merge: Callable[[Sequence[float]], float]
) -> tuple[HistorySlot | None, ...]:
    """Return several histories as one: the merged means and peaks of each slot, None where none has a sample."""
    found: list[HistorySlot | None] = []
    for slots in zip(*filter(None, columns), strict=True):
        known = [slot for slot in slots if slot]
        found.append(
            HistorySlot(merge([one.mean for one in known]), merge([one.peak for one in known]))
            if known
            else None
        )
    return tuple(found)


def mean(values: Sequence[float]) -> float:
    """Return the mean of some values."""
    return sum(values) / len(values)


class CurveUnit(Enum):
    """The unit of a curve's values."""

    SHARE = "share"
    RATE = "rate"
    LATENCY = "latency"


class HistoryCurve(NamedTuple):
    """A history to draw; `minute` and `hour` return its slots."""

    unit: CurveUnit
    minute: Callable[[], Sequence[HistorySlot | None]]
    hour: Callable[[], Sequence[HistorySlot | None]]


def share_curve(model: TopModel, series: Series) -> HistoryCurve:
    """Return the history of a share: the machine's, a device's, a core's."""
    history = model.history
    return HistoryCurve(CurveUnit.SHARE, partial(history.minute, series), partial(history.hour, series))


class Columns(Struct, frozen=True):
    """The columns of curves in lines of a width: after a label, one or all time spans, `graph` cells each."""

    label: int
    graph: int
    hours: tuple[bool, ...]


def has_long_history(model: TopModel) -> bool:
    """Return whether enough minutes are known for the last hour to be worth a column."""
    return sum(slot is not None for slot in model.history.hour(MACHINE)) >= _FEWEST_MINUTES


def columns_for(width: int, label: int, *, hour: bool, has_hour: bool) -> Columns:
    """Return the columns for a width, which they fill.

    Args:
        width: cells in a line.
        label: cells before the first curve.
        hour: show the last hour if only one fits.
        has_hour: whether there is more than a minute of history; without, the minute takes all the room.
    """
    both = has_hour and width >= label + 2 * (_NARROW_GRAPH + _VALUES_WIDTH + _BETWEEN)
    room = (width - label) // (2 if both else 1)
    graph = max(_LEAST_GRAPH, room - _VALUES_WIDTH - _BETWEEN)
    return Columns(label, graph, (False, True) if both else (hour,))


def head_text(columns: Columns) -> str:
    """Return the heads of the columns, without the label."""
    texts = [f"{SPANS[hour]:<{columns.graph}}  {'avg':>6} {'peak':>6} " for hour in columns.hours]
    return (" " * _BETWEEN).join(texts)


def curve_spans(curve: HistoryCurve, columns: Columns) -> list[Span]:
    """Return the spans of a curve in each column: the graph, average and peak."""
    spans: list[Span] = []
    for hour in columns.hours:
        slots = curve.hour() if hour else curve.minute()
        values = _scaled(slots, _full_scale(curve.unit, slots))
        spans += [
            (_graph(values, columns.graph), Role.GRAPH),
            *_numbers(curve.unit, slots),
            (" " * _BETWEEN, Role.PLAIN),
        ]
    return spans


def _graph(values: Sequence[float | None], cells: int) -> str:
    """Return a curve over a number of cells: blocks if a value has a cell, else two columns of dots in each."""
    if not values:
        return " " * cells
    count = len(values)
    if cells >= count:
        return blocks([values[cell * count // cells] for cell in range(cells)], headroom=True)
    return "".join([text for text, _ in wide_chart(values, cells, 1)[0]])


def chart_pane(
    curve: HistoryCurve, name: str, size: tuple[int, int], *, hour: bool, boxed: bool
) -> list[Line]:
    """Return a curve as a chart in a frame with its name, average and peak.

    Args:
        curve: the history.
        name: of the curve.
        size: cells across and down, with the frame.
        hour: the last hour instead of the last minute.
        boxed: whether the frame has sides.
    """
    width, height = inner_width(size[0], boxed=boxed), size[1] - chrome_lines(boxed=boxed)
    slots = curve.hour() if hour else curve.minute()
    scale = _full_scale(curve.unit, slots)
    values = _scaled(slots, scale)
    found = summary(slots)
    note = (
        ""
        if found is None
        else f"avg {written(curve.unit, found.mean).strip()}  peak {written(curve.unit, found.peak).strip()}"
    )
    top, bottom = ("100 %", "0 %") if curve.unit is CurveUnit.SHARE else (written(curve.unit, scale), "0")
    axis = [top, *[""] * max(0, height - 2), bottom]
    body = [
        fit(((f"{mark:>{_AXIS_WIDTH - 1}} ", Role.DIM), *spans), width)
        for mark, spans in zip(axis, wide_chart(values, width - _AXIS_WIDTH, height), strict=False)
    ]
    return framed(f"{name}: {SPANS[hour]}", body, size, note=note, boxed=boxed)


def written(unit: CurveUnit, value: float) -> str:
    """Format a value in six cells."""
    match unit:
        case CurveUnit.SHARE:
            return f"{100 * value:5.1f}%"
        case CurveUnit.RATE:
            return f"{short_rate(value):>6}"
        case CurveUnit.LATENCY:
            return f"{short_latency(value):>6}"


def _full_scale(unit: CurveUnit, slots: Sequence[HistorySlot | None]) -> float:
    """Return the value at the upper edge: 1 for a share, else the highest mean drawn."""
    if unit is CurveUnit.SHARE:
        return 1.0
    return max((slot.mean for slot in slots if slot), default=0.0) or 1.0


def _scaled(slots: Sequence[HistorySlot | None], scale: float) -> tuple[float | None, ...]:
    values = values_of(slots)
    return values if scale == 1.0 else tuple(None if value is None else value / scale for value in values)


def _numbers(unit: CurveUnit, slots: Sequence[HistorySlot | None]) -> tuple[Span, ...]:
    found = summary(slots)
    if found is None:
        return ((f"  {'-':>6} {'-':>6}", Role.DIM),)
    role = Role.VALUE if found.peak else Role.DIM
    return ((f"  {written(unit, found.mean)} {written(unit, found.peak)}", role),)
