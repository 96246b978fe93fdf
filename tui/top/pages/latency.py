"""Latency over time: percentiles of a process as labelled lines in one chart, and a row for each process."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, NamedTuple

from neurontools.dashboard.machine_history import HistorySlot, Measure, summary
from neurontools.tui.top.numbers import short_latency
from neurontools.tui.top.pages.curves import SPANS, values_of
from neurontools.tui.widgets.charts import ChartLine, line_chart
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width, row
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.machine.machine_view import ProcessKey
    from neurontools.tui.top.model import TopModel

_ROLES = {
    Measure.P50: Role.SHADE_5,
    Measure.P90: Role.SHADE_4,
    Measure.P99: Role.SHADE_3,
    Measure.P100: Role.SHADE_2,
}
_NAMES = {Measure.P50: "p50", Measure.P90: "p90", Measure.P99: "p99", Measure.P100: "max"}
_ROW = (Measure.P50, Measure.P99)
_AXIS = 8
_LABEL = 13
_LEAST_FOR_BOTH = 110
_GAP: Span = ("  ", Role.PLAIN)
_RATIO = 8
_NUMBER = 8
_SLOW_TAIL = 10.0
_DECADE = 10.0
_STEPS = (1.0, 2.0, 5.0)
_LEAST_FOR_ALL = 5


class LatencyScale(NamedTuple):
    """A logarithmic axis from one power of ten of seconds to another."""

    low_s: float
    high_s: float

    def share(self, seconds: float) -> float:
        """Return where a latency is between the ends (0..1)."""
        if seconds <= self.low_s:
            return 0.0
        return log10(seconds / self.low_s) / log10(self.high_s / self.low_s)

    def shares(self, slots: Sequence[HistorySlot | None]) -> tuple[float | None, ...]:
        """Return where the means of some slots are."""
        return tuple(None if value is None else self.share(value) for value in values_of(slots))


def scale_of(histories: Iterable[Sequence[HistorySlot | None]]) -> LatencyScale:
    """Return the axis on which some histories have room."""
    known = [slot.mean for slots in histories for slot in slots if slot and slot.mean > 0]
    low, high = min(known, default=1e-3), max(known, default=1e-2)
    decades = range(floor(log10(low)) - 1, floor(log10(high)) + 3)
    steps = [step * _DECADE**decade for decade in decades for step in _STEPS]
    low_s = max(step for step in steps if step <= low)
    return LatencyScale(low_s, min(step for step in steps if step > max(high, low_s)))


def latency_of(
    model: TopModel, process: ProcessKey, measure: Measure, *, hour: bool = False
) -> tuple[HistorySlot | None, ...]:
    """Return a percentile of a process over the last minute or hour."""
    histories = model.history.processes
    return (histories.hour if hour else histories.minute)(process, measure)


def latency_pane(
    model: TopModel,
    process: ProcessKey,
    name: str,
    size: tuple[int, int],
    *,
    hour: bool,
    boxed: bool,
    measures: Sequence[Measure] = tuple(_NAMES),
) -> list[Line]:
    """Return the percentiles of a process as lines in one chart, on a logarithmic axis, in a frame.

    Args:
        model: the data.
        process: its key.
        name: the title.
        size: cells across and down, with the frame.
        hour: the last hour instead of the last minute.
        boxed: whether the frame has sides.
        measures: the percentiles.
    """
    if size[1] - chrome_lines(boxed=boxed) < _LEAST_FOR_ALL:
        measures = [measure for measure in measures if measure in _ROW]
    histories = {measure: latency_of(model, process, measure, hour=hour) for measure in measures}
    found = [(_NAMES[measure], slots, _ROLES[measure]) for measure, slots in histories.items()]
    found.reverse()  # a lower percentile lies over a higher one
    return lines_pane(found, f"{name}: {SPANS[hour]}", size, boxed=boxed)


def lines_pane(
    histories: Sequence[tuple[str, Sequence[HistorySlot | None], Role]],
    title: str,
    size: tuple[int, int],
    *,
    boxed: bool,
) -> list[Line]:
    """Return latencies over time as labelled lines in one chart, on a logarithmic axis, in a frame.

    Args:
        histories: label, seconds, and role of each line.
        title: of the frame.
        size: cells across and down, with the frame.
        boxed: whether the frame has sides.
    """
    width, height = inner_width(size[0], boxed=boxed), size[1] - chrome_lines(boxed=boxed)
    scale = scale_of(slots for _, slots, _ in histories)
    curves = [
        ChartLine(f"{name:<5}{_last(slots)}", scale.shares(slots), role) for name, slots, role in histories
    ]
    marks = _marks(scale, height)
    drawn = line_chart(curves, width - _AXIS, height, _LABEL)
    body = [
        fit(((f"{marks.get(number, ''):>{_AXIS - 2}}  ", Role.DIM), *spans), width)
        for number, spans in enumerate(drawn)
    ]
    note = "" if any(any(slots) for _, slots, _ in histories) else "no executions yet"
    return framed(title, body, size, note=note, boxed=boxed)


def _marks(scale: LatencyScale, height: int) -> dict[int, str]:
    if height < 2:
        return {}
    marks = {height - 1: short_latency(scale.low_s)}
    mark_s = _DECADE ** floor(log10(scale.low_s) + 1)
    while mark_s < scale.high_s:
        marks.setdefault(height - 1 - round(scale.share(mark_s) * (height - 1)), short_latency(mark_s))
        mark_s *= _DECADE
    return {**marks, 0: short_latency(scale.high_s)}


def _last(slots: Sequence[HistorySlot | None]) -> str:
    known = next((slot for slot in reversed(slots) if slot), None)
    return short_latency(known.mean) if known else "-"


def latency_heads(label: int, width: int, *, hour: bool) -> Line:
    """Return the heads of the columns of `latency_row`."""
    cells, drawn = _graph_cells(label, width)
    spans: list[Span] = [(" " * label, Role.DIM)]
    for measure in _ROW:
        spans.append((f"{_NAMES[measure]:>{_NUMBER}}  ", Role.DIM))
        if measure in drawn:
            spans.append((fixed(SPANS[hour], cells) + "  ", Role.DIM))
    spans.append((f"{'p99/p50':>{_RATIO}}", Role.DIM))
    return fit(spans, width)


def latency_row(
    model: TopModel,
    process: ProcessKey,
    text: str,
    label: int,
    width: int,
    scale: LatencyScale,
    *,
    hour: bool,
    selected: bool,
) -> Line:
    """Return a process's row: p50 and p99 with their lines over time, and how long its tail is.

    Args:
        model: the data.
        process: its key.
        text: its name.
        label: cells of the name.
        width: cells.
        scale: the axis of all rows.
        hour: the last hour instead of the last minute.
        selected: whether the row is the selected one.
    """
    cells, drawn = _graph_cells(label, width)
    spans: list[Span] = [(fixed(text, label - 2) + " ", Role.STRONG if selected else Role.PLAIN)]
    newest: list[float | None] = []
    for measure in _ROW:
        slots = latency_of(model, process, measure, hour=hour)
        newest.append(next((slot.mean for slot in reversed(slots) if slot), None))
        value = short_latency(newest[-1]) if newest[-1] is not None else "-"
        spans.append((f"{value:>{_NUMBER}}  ", Role.DIM if newest[-1] is None else Role.VALUE))
        if measure in drawn:
            spans += [*line_chart([ChartLine("", scale.shares(slots), _ROLES[measure])], cells, 1)[0], _GAP]
    usual, slow = newest
    ratio = slow / usual if usual and slow else None
    role = Role.DIM if ratio is None else Role.ALERT if ratio >= _SLOW_TAIL else Role.PLAIN
    spans.append((f"{f'x{ratio:.1f}' if ratio else '-':>{_RATIO}}", role))
    return row(spans, width, selected=selected)


def percentile_row(
    text: str,
    slots: Sequence[HistorySlot | None],
    label: int,
    width: int,
    scale: LatencyScale,
    *,
    selected: bool,
) -> Line:
    """Return the row of one percentile: its newest value, its line over time, average and peak.

    Args:
        text: its name.
        slots: its history.
        label: cells of the name.
        width: cells.
        scale: the axis of all rows.
        selected: whether the row is the selected one.
    """
    found = summary(slots)
    cells = max(4, width - label - _NUMBER - 2 - 2 * _NUMBER - 2)
    values = (_last(slots), short_latency(found.mean), short_latency(found.peak)) if found else ("-",) * 3
    role = Role.VALUE if found else Role.DIM
    spans = [
        (fixed(text, label - 2) + " ", Role.STRONG if selected else Role.PLAIN),
        (f"{values[0]:>{_NUMBER}}  ", role),
        *line_chart([ChartLine("", scale.shares(slots), Role.SHADE_3)], cells, 1)[0],
        (f"{values[1]:>{_NUMBER}} {values[2]:>{_NUMBER}}", Role.DIM),
    ]
    return row(spans, width, selected=selected)


def _graph_cells(label: int, width: int) -> tuple[int, tuple[Measure, ...]]:
    drawn = _ROW if width >= _LEAST_FOR_BOTH else (Measure.P99,)
    room = width - label - len(_ROW) * (_NUMBER + 2) - _RATIO - 1
    return max(4, room // len(drawn) - len(_GAP[0])), drawn
