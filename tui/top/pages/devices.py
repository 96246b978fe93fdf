"""The page of devices: every core on one screen by colour, the links as a drawing, or one device in full."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from neurontools.dashboard.links import links
from neurontools.tui.top.page import ListPage, PageKey
from neurontools.tui.top.pages.curves import chart_pane, share_curve
from neurontools.tui.top.pages.device import device_lines, link_pane, power_of
from neurontools.tui.top.pages.heat_map import heat_map_heads, heat_map_layout, heat_map_row
from neurontools.tui.top.pages.topology import Topology
from neurontools.tui.widgets.bars import CELLS
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Line, Role, Span, fit, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.snapshot import DeviceState
    from neurontools.tui.top.model import TopModel

_HEAT_MAP_LINES = 3
_LEAST_FOR_LINKS = 110
_DRAWING = 66
_LEAST_DEVICE = 12
_LEAST_BESIDE = 150
_LEAST_CHART = 7
_LEAST_LINKS, _LEAST_SHORT_LINKS = 8, 6
_DEVICE_PERCENT = 54
_FOOT = "⏎ one device  t heat map/links"
_LEGEND = ("idle", "to 20%", "to 40%", "to 60%", "to 80%", "to 100%")


class DevicesPage(ListPage):
    """The heat map; `t` switches to the links, enter to the selected device and back."""

    name = "devices"
    letter = "v"

    def __init__(self) -> None:
        super().__init__()
        self._is_topology = False
        self._has_device = False
        self._first = 0
        self._step_lines = 1

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return (
            *self._list_keys("select a device, or scroll", "ten lines", "first device", "last device"),
            PageKey("previous", "left", "previous device", lambda model: self._step(model, -1)),
            PageKey("next", "right", "next device", lambda model: self._step(model, 1)),
            PageKey("topology", "t", "heat map or links", self._turn, "heat map/links"),
            PageKey("device", "enter", "one device in full, or back", self._toggle_device, "device"),
            PageKey("back", "escape", "back from the device", lambda _: setattr(self, "_has_device", False)),
        )

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return the current view."""
        boxed = is_boxed(width, height)
        devices = model.shown.snapshot.devices if model.shown.snapshot else ()
        if not devices:
            text = " this machine has no devices" if model.shown.snapshot else ""
            body = [fit(((text, Role.DIM),), inner_width(width, boxed=boxed))]
            return framed("Devices", body, (width, height), boxed=boxed)
        room = height - chrome_lines(boxed=boxed) - _HEAT_MAP_LINES
        self._step_lines = 2 if 2 * len(devices) - 1 <= room else 1
        window = self._cursor.window(len(devices), room)
        device = devices[self._cursor.row]
        if self._has_device:
            return self._device(model, device, width, height)
        if self._is_topology:
            return self._topology(model, device.index, width, height)
        inner = inner_width(width, boxed=boxed)
        body = self._heat_map(model, [devices[at] for at in window], inner)
        note = "" if len(window) == len(devices) else f"{window.start + 1}-{window.stop} of {len(devices)}"
        return self._with_device("Devices", body, (width, height), note, model, device)

    def _with_device(
        self,
        title: str,
        body: list[Line],
        size: tuple[int, int],
        note: str,
        model: TopModel,
        device: DeviceState,
    ) -> list[Line]:
        # Below a short view the selected device fills the page.
        width, height = size
        boxed = is_boxed(width, height)
        above = len(body) + chrome_lines(boxed=boxed)
        if not boxed or height - above < _LEAST_DEVICE:
            return framed(title, body, size, note=note, foot=_FOOT, boxed=boxed)
        drawn = framed(title, body, (width, above), note=note, foot=_FOOT)
        below = height - above
        has_links = self._is_topology and width >= _LEAST_BESIDE
        left = width * _DEVICE_PERCENT // 100 if has_links else width
        found = list(device_lines(model, device, inner_width(left, boxed=True), has_links=not has_links))
        own = min(below, len(found) + chrome_lines(boxed=True))
        name = f"ND{device.index}"
        column = framed(f"Device {name}", found, (left, own if below - own >= _LEAST_CHART else below))
        if len(column) < below:
            curve = share_curve(model, ("device", device.index))
            size = (left, below - own)
            column += chart_pane(curve, f"Utilization of {name}", size, hour=False, boxed=True)
        if has_links:
            column = beside(column, link_pane(model, device.index, (width - left, below)))
        return drawn + column

    def wanted_lines(self, model: TopModel) -> int:
        """Return how many lines show every device."""
        devices = model.shown.snapshot.devices if model.shown.snapshot else ()
        return 4 + max(len(devices), 64 if self._has_device or self._is_topology else 0)

    def click(self, model: TopModel, x: int, y: int) -> None:  # noqa: ARG002  a row is hit wherever it is
        """Select the device under the mouse; a click on the selected one shows it in full."""
        row = self._row_at(y, len(model.shown.snapshot.devices) if model.shown.snapshot else 0)
        if row is None or self._has_device or self._is_topology:
            return
        if row == self._cursor.row:
            self._toggle_device(model)
        self._cursor.row = row

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return devices and links."""
        snapshot = model.shown.snapshot
        if snapshot is None:
            return {"devices": [], "links": []}
        utilization = {core: rate.utilization for core, rate in model.shown.rates.items()}
        return {
            "devices": [
                {
                    "device": device.index,
                    "lost": device.lost,
                    "unhealthy": list(device.unhealthy),
                    "power": asdict(power) if (power := power_of(model, device)) else None,
                    "memory_bytes": device.memory_bytes,
                    "memory_used_bytes": device.memory_used_bytes,
                    "cores": [
                        {"core": core, "utilization": utilization.get(core, 0.0)} for core in device.core_ids
                    ],
                    "hardware": msgspec.structs.asdict(device.hardware),
                    "alerts": [
                        str(alert.condition) for alert in model.monitor.alerts_of_device.get(device.index, ())
                    ],
                }
                for device in snapshot.devices
            ],
            "links": [
                {"devices": list(link.devices), "down": link.is_down, "modelled_load": link.load}
                for link in links(snapshot, utilization).values()
            ],
        }

    def _move(self, model: TopModel, steps: int) -> None:
        if self._has_device:
            self._first = max(0, self._first + steps)
        else:
            self._step(model, steps)

    def _step(self, model: TopModel, steps: int) -> None:
        self._cursor.move(steps, len(model.shown.snapshot.devices) if model.shown.snapshot else 0)

    def _turn(self, _model: TopModel) -> None:
        self._is_topology, self._has_device = not self._is_topology, False

    def _toggle_device(self, _model: TopModel) -> None:
        self._has_device, self._first = not self._has_device, 0

    def _row_at(self, y: int, count: int) -> int | None:
        row = self._cursor.first + (y - self._top) // self._step_lines
        return row if y >= self._top and row < count else None

    def _device(self, model: TopModel, device: DeviceState, width: int, height: int) -> list[Line]:
        boxed = is_boxed(width, height)
        inner, room = inner_width(width, boxed=boxed), height - chrome_lines(boxed=boxed)
        is_beside = boxed and width >= _LEAST_BESIDE
        found = list(device_lines(model, device, inner, has_links=not is_beside))
        self._first = max(0, min(self._first, len(found) - room))
        body = found[self._first : self._first + room]
        below = room - len(body) if boxed and room - len(body) >= _LEAST_CHART else 0
        note = "←→ other devices  ⏎ back"
        drawn = framed(f"Device ND{device.index}", body, (width, height - below), note=note, boxed=boxed)
        if not below:
            return drawn
        left = width // 2 if is_beside else width
        charts = _device_charts(model, device.index, (left, below))
        if is_beside:
            charts = beside(charts, link_pane(model, device.index, (width - left, below)))
        return drawn + charts

    def _topology(self, model: TopModel, selected: int, width: int, height: int) -> list[Line]:
        if model.shown.snapshot is None:
            return []
        boxed = is_boxed(width, height)
        inner, room = inner_width(width, boxed=boxed), height - chrome_lines(boxed=boxed)
        utilization = {core: rate.utilization for core, rate in model.shown.rates.items()}
        drawn = Topology(model.shown.snapshot, utilization, selected, model.monitor.alerts_of_device)
        has_list = boxed and inner >= _LEAST_FOR_LINKS
        drawing = drawn.lines(_DRAWING if has_list else inner)
        first = 0
        if len(drawing) > room:
            selected_line = next(
                at for at, line in enumerate(drawing) if any(role is Role.ON_STRONG for _, role in line)
            )
            first = max(0, min(selected_line - room // 2, len(drawing) - room))
        body = drawing[first : first + room]
        free = room - len(body) - 1
        left = _DRAWING if has_list else inner
        if width < _LEAST_BESIDE and free >= (_LEAST_LINKS if boxed else _LEAST_SHORT_LINKS):
            body += [fit((), left), *link_pane(model, selected, (left, free), boxed=False)]
        if has_list:
            rest = inner - _DRAWING
            listed = list(drawn.link_rows(rest, room))
            count = max(len(body), len(listed))
            blank, right_blank = fit((), _DRAWING), fit((), rest)
            body = [
                (*one, *other)
                for one, other in zip(
                    [*body, *[blank] * (count - len(body))],
                    [*listed, *[right_blank] * (count - len(listed))],
                    strict=True,
                )
            ]
        device = next(one for one in model.shown.snapshot.devices if one.index == selected)
        return self._with_device("Links", body, (width, height), "load is modelled", model, device)

    def _heat_map(self, model: TopModel, devices: Sequence[DeviceState], width: int) -> list[Line]:
        cores = max(len(device.core_ids) for device in devices)
        layout = heat_map_layout(width, cores)
        self._top = 2
        drawn = [heat_map_heads(layout, width)]
        selected = self._cursor.row - self._cursor.first
        for number, device in enumerate(devices):
            if number and self._step_lines > 1:
                drawn.append(fit((), width))
            drawn.append(heat_map_row(model, device, layout, width, selected=number == selected))
        return [*drawn, fit((), width), _legend(width)]


def _device_charts(model: TopModel, device: int, size: tuple[int, int]) -> list[Line]:
    width, height = size
    series = [(f"Utilization of ND{device}", "device"), (f"HBM in use of ND{device}", "memory")]
    high = height // 2 if height >= 2 * _LEAST_CHART else height
    drawn: list[Line] = []
    for name, kind in series:
        if len(drawn) < height:
            room = (width, high if not drawn else height - high)
            drawn += chart_pane(share_curve(model, (kind, device)), name, room, hour=False, boxed=True)
    return drawn


def _legend(width: int) -> Line:
    spans: list[Span] = [(" ", Role.PLAIN)]
    for role, text in zip(CELLS, _LEGEND, strict=True):
        spans += [(" ░ " if role is CELLS[0] else "   ", role), (f" {text}  ", Role.DIM)]
    unit: Span = ("utilization, %", Role.DIM)
    has_room = sum(width_of(text) for text, _ in (*spans, unit)) <= width
    return fit([*spans, unit] if has_room else spans, width)
