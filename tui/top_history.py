"""The page of histories: the machine, its devices and their cores over the last minute and the last hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.dashboard.history import summary
from neurontools.dashboard.machine_history import MACHINE, Series
from neurontools.tui.lines import Line, Role, Span, fit
from neurontools.tui.top_page import Cursor, Page, PageKey
from neurontools.tui.top_rows import section
from neurontools.tui.top_spark import blocks, braille, chart, values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.history import Slot
    from neurontools.machine.snapshot import DeviceState
    from neurontools.tui.top_model import TopModel
    from neurontools.tui.top_page import Request

_LABEL_WIDTH = 14
_VALUES_WIDTH = 15
_CHART_LINES = 6
_LOW_CHART_LINES = 3
_LEAST_FOR_CHART = 16
_LEAST_FOR_HIGH_CHART = 30
_AXIS_WIDTH = 6
_SPANS = ("last minute", "last hour")
_ALL_LINES = 100_000


class HistoryPage(Page):
    """Rows that open like the memory tree; the selected one as a chart above them."""

    name = "history"
    title = "History"

    def __init__(self) -> None:
        self._cursor = Cursor()
        self._opened: set[int] = set()
        self._hour = False
        self._memory = False
        self._top = 0

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return (
            PageKey("up", "up", "select a row", lambda model: self._move(model, -1)),
            PageKey("down", "down", "select a row", lambda model: self._move(model, 1), "select"),
            PageKey("page-up", "pageup", "ten rows up", lambda model: self._move(model, -10)),
            PageKey("page-down", "pagedown", "ten rows down", lambda model: self._move(model, 10)),
            PageKey("first", "home", "first row", lambda model: self._move(model, -_ALL_LINES)),
            PageKey("last", "end", "last row", lambda model: self._move(model, _ALL_LINES)),
            PageKey("toggle", "enter", "show or hide the device's cores", self._toggle, "cores"),
            PageKey(
                "expand", "right", "show the device's cores", lambda model: self._open(model, opened=True)
            ),
            PageKey(
                "collapse", "left", "hide the device's cores", lambda model: self._open(model, opened=False)
            ),
            PageKey("toggle-all", "x", "show or hide all cores", self._toggle_all, "all cores"),
            PageKey("span", "t", "last minute or last hour", self._change_span, "minute/hour"),
            PageKey("memory", "u", "utilization or device memory", self._change_value, "utilization/memory"),
        )

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return the chart of the selected row, and the rows."""
        rows = self._rows(model)
        high = _CHART_LINES if height >= _LEAST_FOR_HIGH_CHART else _LOW_CHART_LINES
        if height < _LEAST_FOR_CHART or not rows:
            high = 0
        room = height - 1 - (high + 1 if high else 0)
        shown = self._cursor.window(len(rows), room)
        drawn: list[Line] = []
        if high:
            drawn += self._chart(model, rows[self._cursor.row], width, high)
        drawn.append(self._head(width))
        self._top = len(drawn)
        for index in shown:
            drawn.append(self._row(model, rows[index], width, selected=index == self._cursor.row))
        return drawn

    def wanted_lines(self, model: TopModel) -> int:
        """Return how many lines show every open row."""
        return max(_LEAST_FOR_HIGH_CHART, len(self._rows(model)) + _CHART_LINES + 2)

    def click(self, model: TopModel, x: int, y: int) -> Request | None:  # noqa: ARG002  a row is hit wherever it is
        """Select the row under the mouse; a click on the selected one opens or closes it."""
        row = self._cursor.first + y - self._top
        if y >= self._top and row < len(self._rows(model)):
            if row == self._cursor.row:
                self._toggle(model)
            self._cursor.row = row
        return None

    def scroll(self, model: TopModel, steps: int) -> None:
        """Move the selection."""
        self._move(model, steps)

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return all series: means and peaks of the seconds and minutes, null where nothing was sampled."""
        snapshot = model.snapshot
        devices = snapshot.devices if snapshot else ()
        cores = [("core", core) for device in devices for core in sorted(device.core_ids)]
        return {
            "all_cores": _series_data(model, MACHINE),
            "devices": [
                {
                    "device": device.index,
                    "utilization": _series_data(model, ("device", device.index)),
                    "memory": _series_data(model, ("memory", device.index)),
                }
                for device in devices
            ],
            "cores": [
                {"core": core, "utilization": _series_data(model, (kind, core))} for kind, core in cores
            ],
        }

    def _rows(self, model: TopModel) -> list[Series]:
        if model.snapshot is None:
            return []
        rows: list[Series] = [] if self._memory else [MACHINE]
        for device in model.snapshot.devices:
            rows.append(("memory" if self._memory else "device", device.index))
            if device.index in self._opened and not self._memory:
                rows += [("core", core) for core in sorted(device.core_ids)]
        return rows

    def _move(self, model: TopModel, steps: int) -> None:
        self._cursor.move(steps, len(self._rows(model)))

    def _device(self, model: TopModel) -> int | None:
        rows = self._rows(model)
        if not rows:
            return None
        kind, number = rows[min(self._cursor.row, len(rows) - 1)]
        if kind == "core":
            return _device_of(model, number).index
        return number if kind == "device" else None

    def _toggle(self, model: TopModel) -> None:
        device = self._device(model)
        if device is not None:
            self._set_open(model, device, opened=device not in self._opened)

    def _open(self, model: TopModel, *, opened: bool) -> None:
        device = self._device(model)
        if device is not None:
            self._set_open(model, device, opened=opened)

    def _set_open(self, model: TopModel, device: int, *, opened: bool) -> None:
        if opened:
            self._opened.add(device)
        else:
            self._opened.discard(device)
            self._cursor.row = self._rows(model).index(("device", device))

    def _toggle_all(self, model: TopModel) -> None:
        devices = {device.index for device in model.snapshot.devices} if model.snapshot else set()
        self._opened = set() if devices <= self._opened else devices

    def _change_span(self, _model: TopModel) -> None:
        self._hour = not self._hour

    def _change_value(self, _model: TopModel) -> None:
        self._memory = not self._memory

    def _slots(self, model: TopModel, series: Series, *, hour: bool) -> tuple[Slot | None, ...]:
        return model.history.hour(series) if hour else model.history.minute(series)

    def _head(self, width: int) -> Line:
        what = "Memory in use" if self._memory else "Utilization"
        if _both(width):
            graph = _graph_width(width)
            texts = [f"{span:<{graph}}  {'avg':>6} {'peak':>6} " for span in _SPANS]
            return section(f" {what:<{_LABEL_WIDTH - 1}}{'  '.join(texts)}", width)
        graph = _graph_width(width)
        return section(
            f" {what:<{_LABEL_WIDTH - 1}}{_SPANS[self._hour]:<{graph}}  {'avg':>6} {'peak':>6} ", width
        )

    def _row(self, model: TopModel, series: Series, width: int, *, selected: bool) -> Line:
        spans: list[Span] = [
            (f"{self._label(model, series):<{_LABEL_WIDTH}}", Role.SELECTED if selected else Role.PLAIN)
        ]
        graph = _graph_width(width)
        for hour in (False, True) if _both(width) else (self._hour,):
            slots = self._slots(model, series, hour=hour)
            values = values_of(slots)
            text = blocks(values) if graph >= len(values) else braille(values)
            spans += [(text.rjust(graph)[-graph:], Role.GRAPH), *_numbers(slots), ("  ", Role.PLAIN)]
        return fit(spans, width)

    def _label(self, model: TopModel, series: Series) -> str:
        kind, number = series
        if series == MACHINE:
            return " all cores"
        if kind == "core":
            return f"     NC{sorted(_device_of(model, number).core_ids).index(number)}"
        sign = "" if kind == "memory" else "[-] " if number in self._opened else "[+] "
        return f" {sign}ND{number}"

    def _chart(self, model: TopModel, series: Series, width: int, high: int) -> list[Line]:
        slots = self._slots(model, series, hour=self._hour)
        values = values_of(slots)
        stretch = max(1, 2 * (width - _AXIS_WIDTH - 1) // len(values)) if values else 1
        drawn = chart(values, high, stretch)
        found = summary(slots)
        text = f" {self._label(model, series).replace('[+]', '').replace('[-]', '').strip()}: {_SPANS[self._hour]}"
        note = "" if found is None else f"avg {_percent(found.mean)}  peak {_percent(found.peak)}"
        axis = ["100 %", *[""] * (high - 2), "0 %"]
        return [
            section(text, width, note),
            *(
                fit(((f"{mark:>{_AXIS_WIDTH - 1}} ", Role.DIM), (line, Role.GRAPH)), width)
                for mark, line in zip(axis, drawn, strict=True)
            ),
        ]


def _numbers(slots: Sequence[Slot | None]) -> tuple[Span, ...]:
    found = summary(slots)
    if found is None:
        return ((f"  {'-':>6} {'-':>6}", Role.DIM),)
    role = Role.VALUE if found.peak else Role.DIM
    return ((f"  {_percent(found.mean)} {_percent(found.peak)}", role),)


def _percent(share: float) -> str:
    return f"{100 * share:5.1f}%"


def _both(width: int) -> bool:
    return width >= _LABEL_WIDTH + 2 * (30 + _VALUES_WIDTH + 2)


def _graph_width(width: int) -> int:
    spans = 2 if _both(width) else 1
    return 60 if (width - _LABEL_WIDTH) // spans >= 60 + _VALUES_WIDTH + 2 else 30


def _device_of(model: TopModel, core: int) -> DeviceState:
    devices = model.snapshot.devices if model.snapshot else ()
    return next(device for device in devices if core in device.core_ids)


def _series_data(model: TopModel, series: Series) -> dict[str, Any]:
    slots = {"minute": model.history.minute(series), "hour": model.history.hour(series)}
    return {
        span: {
            "mean": [None if slot is None else slot.mean for slot in found],
            "peak": [None if slot is None else slot.peak for slot in found],
        }
        for span, found in slots.items()
    }
