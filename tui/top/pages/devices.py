"""The page of devices: every core on one screen by colour, the links as a drawing, or one device in full."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from neurontools.dashboard.links import links
from neurontools.tui.top.page import ListPage, PageKey
from neurontools.tui.top.pages.device import device_lines, power_of
from neurontools.tui.top.pages.rows import section
from neurontools.tui.top.pages.topology import Topology
from neurontools.tui.widgets.lines import HEAT, Line, Role, Span, fit, heat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.snapshot import DeviceState
    from neurontools.tui.top.model import TopModel

_LABEL_WIDTH = 7
_FACTS_WIDTH = 29
_WIDEST_CELL = 8
_DIGITS = ".123456789"
_LEGEND = ("idle", "to 20%", "to 40%", "to 60%", "to 80%", "to 100%")


class DevicesPage(ListPage):
    """The heat map; `t` switches to the links, enter to the selected device and back."""

    name = "devices"
    title = "Devices"

    def __init__(self) -> None:
        super().__init__()
        self._is_topology = False
        self._has_device = False
        self._first = 0

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return (
            *self._list_keys("select a device, or scroll", "ten lines", "first device", "last device"),
            PageKey("previous", "left", "previous device", lambda model: self._step(model, -1)),
            PageKey("next", "right", "next device", lambda model: self._step(model, 1)),
            PageKey("topology", "t", "heat map or links", self._turn, "heat map/links"),
            PageKey("device", "enter", "one device in full, or back", self._toggle_device, "device"),
            PageKey("back", "escape", "back from the device", self._close),
        )

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return the current view."""
        devices = model.shown.snapshot.devices if model.shown.snapshot else ()
        if not devices:
            text = " this machine has no devices" if model.shown.snapshot else ""
            return [section(" Devices", width), fit(((text, Role.DIM),), width)]
        window = self._cursor.window(len(devices), height - 3)
        device = devices[self._cursor.row]
        if self._has_device:
            return self._device(model, device, width, height)
        if self._is_topology:
            return self._topology(model, device.index, width, height)
        return self._heat_map(model, [devices[at] for at in window], width)

    def wanted_lines(self, model: TopModel) -> int:
        """Return how many lines show every device."""
        devices = model.shown.snapshot.devices if model.shown.snapshot else ()
        return 3 + max(len(devices), 64 if self._has_device or self._is_topology else 0)

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

    def _close(self, _model: TopModel) -> None:
        self._has_device = False

    def _device(self, model: TopModel, device: DeviceState, width: int, height: int) -> list[Line]:
        found = list(device_lines(model, device, width))
        self._first = max(0, min(self._first, len(found) - (height - 1)))
        note = "left/right: other devices, enter: back"
        return [
            section(f" Device ND{device.index}", width, note),
            *found[self._first : self._first + height - 1],
        ]

    def _topology(self, model: TopModel, selected: int, width: int, height: int) -> list[Line]:
        if model.shown.snapshot is None:
            return []
        utilization = {core: rate.utilization for core, rate in model.shown.rates.items()}
        drawing = Topology(model.shown.snapshot, utilization, selected, model.monitor.alerts_of_device).lines(
            width
        )
        room = height - 1
        first = 0
        if len(drawing) > room:
            selected_line = next(
                at for at, line in enumerate(drawing) if any(role is Role.SELECTED for _, role in line)
            )
            first = max(0, min(selected_line - room // 2, len(drawing) - room))
        blank = [fit((), width)] if len(drawing) < room else []
        return [section(" Links", width), *blank, *drawing[first : first + room]]

    def _heat_map(self, model: TopModel, devices: Sequence[DeviceState], width: int) -> list[Line]:
        cores = max(len(device.core_ids) for device in devices)
        cell = max(1, min(_WIDEST_CELL, (width - _LABEL_WIDTH - _FACTS_WIDTH) // max(1, cores)))
        facts = f"{'mean':>6} {'peak':>6} {'HBM':>6} {'ECC':>7}"
        at = _LABEL_WIDTH + cores * cell
        head = f"{' Cores':<{at}} {facts}" if at + _FACTS_WIDTH <= width else " Cores"
        drawn = [section(head, width)]
        selected = self._cursor.row - self._cursor.first
        drawn += [
            self._row(model, device, cell, cores, width, selected=number == selected)
            for number, device in enumerate(devices)
        ]
        return [*drawn, fit((), width), _legend(width, colour=model.colour)]

    def _row(
        self, model: TopModel, device: DeviceState, cell: int, cores: int, width: int, *, selected: bool
    ) -> Line:
        shares = [
            model.shown.rates[core].utilization if core in model.shown.rates else 0.0
            for core in sorted(device.core_ids)
        ]
        alerts = model.monitor.alerts_of_device.get(device.index)
        role = Role.SELECTED if selected else Role.ALERT if alerts or device.lost else Role.HEAD
        spans: list[Span] = [
            (f"{'!' if alerts or device.lost else ' '}ND{device.index:<{_LABEL_WIDTH - 3}}", role)
        ]
        if device.lost:
            spans.append((f"{'lost':<{cores * cell}}", Role.ALERT))
        else:
            spans += _cells(shares, cell, colour=model.colour)
            spans.append((" " * ((cores - len(shares)) * cell), Role.PLAIN))
        errors = sum(msgspec.structs.asdict(device.hardware).values())
        memory = device.memory_used_bytes / device.memory_bytes if device.memory_bytes else 0.0
        mean = sum(shares) / len(shares) if shares else 0.0
        text = f" {100 * mean:5.1f}% {100 * max(shares, default=0.0):5.1f}% {100 * memory:5.1f}%"
        spans += [
            (text, Role.PLAIN if mean or memory else Role.DIM),
            (f" {errors:>7}", Role.ALERT if errors else Role.DIM),
        ]
        return fit(spans, width)


def _cells(shares: Sequence[float], cell: int, *, colour: bool) -> list[Span]:
    # Neighbours of one colour are one span: 512 cells would be 512 spans otherwise.
    spans: list[Span] = []
    for share in shares:
        role = heat(share)
        mark = "█" if colour else _DIGITS[max(1, min(9, int(share * 10)))] if share > 0 else _DIGITS[0]
        text = mark * max(1, cell - 1) + (" " if cell > 1 else "")
        if spans and spans[-1][1] is role:
            spans[-1] = (spans[-1][0] + text, role)
        else:
            spans.append((text, role))
    return spans


def _legend(width: int, *, colour: bool) -> Line:
    if not colour:
        return fit(((" . idle, 1 to 9: tenths of the time the core executed", Role.DIM),), width)
    spans: list[Span] = [(" ", Role.PLAIN)]
    for role, text in zip(HEAT, _LEGEND, strict=True):
        spans += [("██", role), (f" {text}  ", Role.DIM)]
    return fit(spans, width)
