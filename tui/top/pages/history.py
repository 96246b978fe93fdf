"""The page of histories: the machine, devices, cores and processes over the last minute and the last hour."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools.base.text import printable
from neurontools.dashboard.machine_history import LATENCIES, MACHINE, Measure
from neurontools.machine.machine_view import device_processes, process_key
from neurontools.tui.top.page import ListPage, PageKey, switch
from neurontools.tui.top.pages.curves import (
    Columns,
    CurveUnit,
    HistoryCurve,
    chart_pane,
    columns_for,
    curve_spans,
    has_long_history,
    head_text,
    share_curve,
    values_of,
)
from neurontools.tui.top.pages.latency import (
    latency_heads,
    latency_of,
    latency_pane,
    latency_row,
    percentile_row,
    scale_of,
)
from neurontools.tui.widgets.frames import chrome_lines, edge, framed, inner_width, is_boxed, row
from neurontools.tui.widgets.lines import Line, Role, fit, fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from neurontools.machine.machine_view import ProcessKey
    from neurontools.machine.snapshot import DeviceState, ProcessState
    from neurontools.tui.top.model import TopModel

Opens = int | tuple[int, int] | None
"""What enter on a row opens or closes: a device by its index, a process by its key, nothing."""

_UNITS = {Measure.EXECUTIONS: CurveUnit.RATE, **dict.fromkeys(LATENCIES, CurveUnit.LATENCY)}

_CORES_LABEL = 14
_PROCESSES_LABEL = 28

_CHART_LINES = 6
_LOW_CHART_LINES = 3
_LEAST_FOR_CHART = 16
_LEAST_FOR_HIGH_CHART = 30
_LEAST_FOR_LABELS = 76
_SHORT_LABEL = 14


class HistoryRow(NamedTuple):
    """A row: its label in the list and as a title, its curve, and the key it opens.

    `percentiles` is the process of which all percentiles are drawn together.
    """

    label: str
    name: str
    curve: HistoryCurve
    opens: Opens = None
    percentiles: ProcessKey | None = None


class HistoryView(NamedTuple):
    """A view: makes rows for a model and the opened keys; `label` is the width of the labels."""

    title: str
    label: int
    rows: Callable[[TopModel, Collection[Opens]], list[HistoryRow]]


def process_curve(model: TopModel, process: ProcessKey, measure: Measure) -> HistoryCurve:
    """Return the history of a process."""
    histories = model.history.processes
    return HistoryCurve(
        _UNITS[measure],
        partial(histories.minute, process, measure),
        partial(histories.hour, process, measure),
    )


def _devices(model: TopModel) -> Sequence[DeviceState]:
    return model.shown.snapshot.devices if model.shown.snapshot else ()


def _utilization(model: TopModel, opened: Collection[Opens]) -> list[HistoryRow]:
    rows = [HistoryRow(" all cores", "all cores", share_curve(model, MACHINE))]
    for device in _devices(model):
        index = device.index
        is_open = index in opened
        rows.append(
            HistoryRow(
                f" {_sign(is_open)} ND{index}", f"ND{index}", share_curve(model, ("device", index)), index
            )
        )
        if is_open:
            rows += [
                HistoryRow(f"    NC{place}", f"NC{place}", share_curve(model, ("core", core)), index)
                for place, core in enumerate(sorted(device.core_ids))
            ]
    return rows


def _memory(model: TopModel, _opened: Collection[Opens]) -> list[HistoryRow]:
    return [
        HistoryRow(f" ND{device.index}", f"ND{device.index}", share_curve(model, ("memory", device.index)))
        for device in _devices(model)
    ]


def _executions(model: TopModel, _opened: Collection[Opens]) -> list[HistoryRow]:
    rows = []
    for process in _processes(model):
        name = _name(process)
        curve = process_curve(model, process_key(process), Measure.EXECUTIONS)
        rows.append(HistoryRow(f" {name}", f"{name}, executions/s", curve))
    return rows


def _latency(model: TopModel, opened: Collection[Opens]) -> list[HistoryRow]:
    rows = []
    for process in _processes(model):
        key, name = process_key(process), _name(process)
        is_open = key in opened
        curve = process_curve(model, key, Measure.P99)
        rows.append(HistoryRow(f" {_sign(is_open)} {name}", f"{name}, latency", curve, key, key))
        if is_open:
            rows += [
                HistoryRow(
                    f"    {measure}",
                    f"{name}, latency {measure}",
                    process_curve(model, key, measure),
                    key,
                )
                for measure in LATENCIES
            ]
    return rows


def _processes(model: TopModel) -> Sequence[ProcessState]:
    return device_processes(model.shown.snapshot) if model.shown.snapshot else ()


def _name(process: ProcessState) -> str:
    return f"{process.pid} {printable(process.tag or process.command)}"


def _sign(is_open: bool) -> str:
    return "▾" if is_open else "▸"


VIEWS = (
    HistoryView("Utilization", _CORES_LABEL, _utilization),
    HistoryView("Memory used", _CORES_LABEL, _memory),
    HistoryView("Executions/s", _PROCESSES_LABEL, _executions),
    HistoryView("Latency", _PROCESSES_LABEL, _latency),
)
"""What the page can show, in the order in which its key goes through them."""


class HistoryPage(ListPage):
    """Rows that open like the memory tree; the selected one as a chart above them."""

    name = "history"
    letter = "h"

    def __init__(self) -> None:
        super().__init__()
        self._opened: set[Opens] = set()
        self._hour = False
        self._view = VIEWS[0]

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return (
            *self._list_keys("select a row", "ten rows", "first row", "last row"),
            PageKey("toggle", "enter", "open or close: cores, percentiles", self._toggle, "open"),
            PageKey("expand", "right", "open the row", lambda model: self._set_open(model, opened=True)),
            PageKey("collapse", "left", "close the row", lambda model: self._set_open(model, opened=False)),
            PageKey(
                "value",
                "u",
                "utilization, memory, executions/s, latency",
                lambda _: self._turn(1),
                "memory/executions/latency",
            ),
            PageKey("toggle-all", "x", "open or close all rows", self._toggle_all, "all"),
            PageKey("span", "t", "last minute or last hour", switch(self, "_hour"), "minute/hour"),
            PageKey("value-back", "U", "the previous view", lambda _: self._turn(-1)),
        )

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return the chart of the selected row, and the rows; the chart takes the room that they leave."""
        rows = self._rows(model)
        boxed = is_boxed(width, height)
        frame, inner = chrome_lines(boxed=boxed), inner_width(width, boxed=boxed)
        high = 0
        if rows and height >= _LEAST_FOR_CHART:
            least = _CHART_LINES if height >= _LEAST_FOR_HIGH_CHART else _LOW_CHART_LINES
            high = max(least, height - len(rows) - 1 - 2 * frame)
        columns = self._columns(model, inner)
        drawn: list[Line] = []
        if high:
            one = rows[min(self._cursor.row, len(rows) - 1)]
            drawn += self._chart(model, one, (width, high + frame), boxed=boxed)
        left = height - len(drawn)
        shown = self._cursor.window(len(rows), left - frame - 1)
        self._top = len(drawn) + 2
        body = self._listed(model, rows, shown, columns, inner)
        if not rows and model.shown.snapshot:
            body.append(_nothing(model, inner))
        note = f"{shown.start + 1}-{shown.stop} of {len(rows)}" if len(shown) < len(rows) else ""
        return drawn + framed(
            self._view.title,
            body,
            (width, left),
            note=note,
            foot="⏎ open  u next value  t minute/hour",
            boxed=boxed,
        )

    def _chart(self, model: TopModel, one: HistoryRow, size: tuple[int, int], *, boxed: bool) -> list[Line]:
        if one.percentiles:
            return latency_pane(model, one.percentiles, one.name, size, hour=self._hour, boxed=boxed)
        return chart_pane(one.curve, one.name, size, hour=self._hour, boxed=boxed)

    def _listed(
        self, model: TopModel, rows: Sequence[HistoryRow], shown: range, columns: Columns, width: int
    ) -> list[Line]:
        keys = [one.percentiles for one in rows if one.percentiles]
        if not keys:
            body = [fit(((_head_text(columns), Role.DIM),), width)]
            return body + [_line(rows[at], columns, width, selected=at == self._cursor.row) for at in shown]
        label, hour = columns.label, self._hour
        measures = (Measure.P50, Measure.P99)
        scale = scale_of(latency_of(model, key, measure, hour=hour) for key in keys for measure in measures)
        body = [latency_heads(label, width, hour=hour)]
        for at in shown:
            one, selected = rows[at], at == self._cursor.row
            text = one.label[1:]
            if one.percentiles:
                key = one.percentiles
                body.append(latency_row(model, key, text, label, width, scale, hour=hour, selected=selected))
            else:
                slots = one.curve.hour() if hour else one.curve.minute()
                body.append(percentile_row(text, slots, label, width, scale, selected=selected))
        return body

    def _columns(self, model: TopModel, width: int, view: HistoryView | None = None) -> Columns:
        label = (view or self._view).label if width >= _LEAST_FOR_LABELS else _SHORT_LABEL
        return columns_for(width, label, hour=self._hour, has_hour=has_long_history(model))

    def all_lines(self, model: TopModel, width: int) -> Sequence[Line]:
        """Return the chart of all cores, and all views with every row open."""
        drawn: list[Line] = []
        for view in VIEWS if model.shown.snapshot else ():
            closed = view.rows(model, ())
            rows = view.rows(model, {row.opens for row in closed})
            if not drawn:
                size = (width, _CHART_LINES + 1)
                drawn += chart_pane(rows[0].curve, rows[0].name, size, hour=self._hour, boxed=False)
            columns = self._columns(model, width, view)
            drawn += [fit((), width), edge(view.title, width, boxed=False)]
            drawn.append(fit(((_head_text(columns), Role.DIM),), width))
            drawn += [_line(row, columns, width) for row in rows]
            drawn += [] if rows else [_nothing(model, width)]
        return drawn

    def wanted_lines(self, model: TopModel) -> int:
        """Return how many lines show every open row."""
        return max(_LEAST_FOR_HIGH_CHART, len(self._rows(model)) + _CHART_LINES + 2)

    def click(self, model: TopModel, x: int, y: int) -> None:  # noqa: ARG002  a row is hit wherever it is
        """Select the row under the mouse; a click on the selected one opens or closes it."""
        row = self._row_at(y, len(self._rows(model)))
        if row is not None:
            if row == self._cursor.row:
                self._toggle(model)
            self._cursor.row = row

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return all series: means and peaks of the seconds and minutes, null where nothing was sampled."""
        devices = _devices(model)
        return {
            "all_cores": _curve_data(share_curve(model, MACHINE)),
            "devices": [
                {
                    "device": device.index,
                    "utilization": _curve_data(share_curve(model, ("device", device.index))),
                    "memory": _curve_data(share_curve(model, ("memory", device.index))),
                }
                for device in devices
            ],
            "cores": [
                {"core": core, "utilization": _curve_data(share_curve(model, ("core", core)))}
                for device in devices
                for core in sorted(device.core_ids)
            ],
            "processes": [
                {
                    "pid": process.pid,
                    "tag": process.tag,
                    "executions_per_s": _curve_data(
                        process_curve(model, process_key(process), Measure.EXECUTIONS)
                    ),
                    "latency_s": {
                        str(measure): _curve_data(process_curve(model, process_key(process), measure))
                        for measure in LATENCIES
                    },
                }
                for process in _processes(model)
            ],
        }

    def _rows(self, model: TopModel) -> list[HistoryRow]:
        return self._view.rows(model, self._opened) if model.shown.snapshot else []

    def _move(self, model: TopModel, steps: int) -> None:
        self._cursor.move(steps, len(self._rows(model)))

    def _current(self, model: TopModel) -> Opens:
        rows = self._rows(model)
        return rows[min(self._cursor.row, len(rows) - 1)].opens if rows else None

    def _toggle(self, model: TopModel) -> None:
        self._set_open(model, opened=self._current(model) not in self._opened)

    def _set_open(self, model: TopModel, *, opened: bool) -> None:
        current = self._current(model)
        if current is None:
            return
        if opened:
            self._opened.add(current)
        else:
            self._opened.discard(current)
            self._cursor.row = [row.opens for row in self._rows(model)].index(current)

    def _toggle_all(self, model: TopModel) -> None:
        everything = {row.opens for row in self._rows(model)} - {None}
        if everything <= self._opened:
            self._opened -= everything
        else:
            self._opened |= everything

    def _turn(self, steps: int) -> None:
        self._view = VIEWS[(VIEWS.index(self._view) + steps) % len(VIEWS)]


def _head_text(columns: Columns) -> str:
    return f" {'':<{columns.label - 1}}{head_text(columns)}"


def _nothing(model: TopModel, width: int) -> Line:
    has_devices = model.shown.snapshot and model.shown.snapshot.devices
    text = " no process uses a device" if has_devices else " this machine has no devices"
    return fit(((text, Role.DIM),), width)


def _line(one: HistoryRow, columns: Columns, width: int, *, selected: bool = False) -> Line:
    label = fixed(one.label[1:], columns.label - 2) + " "
    spans = ((label, Role.STRONG if selected else Role.PLAIN), *curve_spans(one.curve, columns))
    return row(spans, width, selected=selected)


def _curve_data(curve: HistoryCurve) -> dict[str, Any]:
    spans = (("minute", curve.minute()), ("hour", curve.hour()))
    return {span: {"mean": values_of(slots), "peak": values_of(slots, peaks=True)} for span, slots in spans}
