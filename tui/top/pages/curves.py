"""Sparklines: histories as lines of text with average and peak, and one history as a chart with an axis. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from neurontools.dashboard.history import summary
from neurontools.tui.top.numbers import short_latency, short_rate
from neurontools.tui.top.pages.rows import section
from neurontools.tui.widgets.lines import BLOCKS, Line, Role, Span, fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.dashboard.history import HistorySlot

_BRAILLE = 0x2800
_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)
_DOTS = len(_LEFT_DOTS)

SPANS = ("last minute", "last hour")
_VALUES_WIDTH = 15
_BETWEEN = 2
_WIDE_GRAPH = 60
_NARROW_GRAPH = 30
_AXIS_WIDTH = 7


def values_of(slots: Sequence[HistorySlot | None], *, peaks: bool = False) -> tuple[float | None, ...]:
    """Return the means (or peaks) of slots, None where there was no sample."""
    return tuple(None if slot is None else slot.peak if peaks else slot.mean for slot in slots)


def blocks(values: Sequence[float | None]) -> str:
    """Draw shares (0..1) as blocks, one a cell; a gap is a blank."""
    last = len(BLOCKS) - 1
    return "".join(
        " " if value is None else BLOCKS[min(last, int(max(0.0, value) * len(BLOCKS)))] for value in values
    )


def braille(values: Sequence[float | None]) -> str:
    """Draw shares (0..1) as dots, two values a cell; a gap is a blank, zero still has a dot."""
    return chart(values, 1)[0]


def chart(values: Sequence[float | None], lines: int, stretch: int = 1) -> tuple[str, ...]:
    """Draw shares (0..1) as columns of braille dots.

    Args:
        values: oldest first.
        lines: how high; each has four dots.
        stretch: how many columns of dots a value takes.

    Returns:
        The lines from top to bottom, each with a cell for two columns.
    """
    heights = [_height(value, lines * _DOTS) for value in values for _ in range(stretch)]
    if len(heights) % 2:
        heights.insert(0, 0)
    rows = []
    for line in range(lines):
        floor = (lines - 1 - line) * _DOTS
        rows.append(
            "".join(
                _cell(left - floor, right - floor)
                for left, right in zip(heights[::2], heights[1::2], strict=True)
            )
        )
    return tuple(rows)


def _height(value: float | None, most: int) -> int:
    return 0 if value is None else max(1, min(most, round(max(0.0, value) * most)))


def _cell(left: int, right: int) -> str:
    if left <= 0 and right <= 0:
        return " "
    dots = sum(_LEFT_DOTS[: max(0, min(left, _DOTS))]) + sum(_RIGHT_DOTS[: max(0, min(right, _DOTS))])
    return chr(_BRAILLE + dots)


class CurveUnit(Enum):
    """The unit of a curve's values."""

    SHARE = "share"
    RATE = "rate"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class HistoryCurve:
    """A history to draw; `minute` and `hour` return its slots."""

    unit: CurveUnit
    minute: Callable[[], Sequence[HistorySlot | None]]
    hour: Callable[[], Sequence[HistorySlot | None]]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of curves in lines of a width: after a label, one or all time spans, `graph` cells each."""

    label: int
    graph: int
    hours: tuple[bool, ...]


def columns_for(width: int, label: int, *, hour: bool) -> Columns:
    """Return the columns for a width.

    Args:
        width: cells in a line.
        label: cells before the first curve.
        hour: show the last hour if only one fits.
    """
    both = width >= label + 2 * (_NARROW_GRAPH + _VALUES_WIDTH + _BETWEEN)
    room = (width - label) // (2 if both else 1)
    graph = _WIDE_GRAPH if room >= _WIDE_GRAPH + _VALUES_WIDTH + _BETWEEN else _NARROW_GRAPH
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
        text = blocks(values) if columns.graph >= len(values) else braille(values)
        spans += [
            (text.rjust(columns.graph)[-columns.graph :], Role.GRAPH),
            *_numbers(curve.unit, slots),
            (" " * _BETWEEN, Role.PLAIN),
        ]
    return spans


def chart_lines(curve: HistoryCurve, name: str, width: int, high: int, *, hour: bool) -> list[Line]:
    """Return a curve as a chart below a bar with its name, average and peak.

    Args:
        curve: the history.
        name: of the curve.
        width: cells in a line.
        high: lines of the chart, at least two.
        hour: the last hour instead of the last minute.
    """
    slots = curve.hour() if hour else curve.minute()
    scale = _full_scale(curve.unit, slots)
    values = _scaled(slots, scale)
    stretch = max(1, 2 * (width - _AXIS_WIDTH) // len(values)) if values else 1
    found = summary(slots)
    note = (
        ""
        if found is None
        else f"avg {written(curve.unit, found.mean)}  peak {written(curve.unit, found.peak)}"
    )
    top, bottom = ("100 %", "0 %") if curve.unit is CurveUnit.SHARE else (written(curve.unit, scale), "0")
    axis = [top, *[""] * (high - 2), bottom]
    return [
        section(f" {name}: {SPANS[hour]}", width, note),
        *(
            fit(((f"{mark:>{_AXIS_WIDTH - 1}} ", Role.DIM), (line, Role.GRAPH)), width)
            for mark, line in zip(axis, chart(values, high, stretch), strict=True)
        ),
    ]


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
