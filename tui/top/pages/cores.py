"""The NeuronCore pane of neuron-top as lines of text: a row for each device, a bar for each logical core."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, NamedTuple

from neurontools.tui.top.layout import DEVICE_LABEL_WIDTH, CellStyle
from neurontools.tui.top.numbers import (
    bracketed_percent,
    bracketed_teraflops,
    percent,
    short_percent,
    short_teraflops,
    teraflops,
)
from neurontools.tui.top.pages.rows import section
from neurontools.tui.widgets.lines import Line, Role, Span, fit, meter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.machine_view import CoreRate, DeviceRates, MachineView
    from neurontools.tui.top.layout import CoreGrid
    from neurontools.tui.top.model import TopModel

_Rows = dict[int, tuple["tuple[DeviceRates, ...]", Line]]

_GAP: Span = (" ", Role.PLAIN)

_drawn: list[tuple[_Look, _Rows]] = []


class _Look(NamedTuple):
    """The parameters of all rows; rows with equal parameters and devices look the same."""

    width: int
    grid: CoreGrid
    flops: bool
    colour: bool
    marked: frozenset[int]
    alerted: frozenset[int]


def core_lines(model: TopModel, width: int, grid: CoreGrid) -> tuple[Line, ...]:
    """Return the pane: its bar, the heads, and the device rows around the selected device that fit."""
    view = model.shown.view
    if view is None:
        return (section(" NeuronCore Utilization", width), *(fit((), width) for _ in range(grid.lines + 1)))
    look = _Look(
        width,
        grid,
        model.flops,
        model.colour,
        model.tree.marked_cores,
        frozenset(model.monitor.alerts_of_device),
    )
    start = _first_device(view, look)
    shown = view.devices[start : start + grid.visible]
    note = ""
    if len(shown) < len(view.devices):
        note = f"ND{shown[0].index}-ND{shown[-1].index} of {len(view.devices)}"
    return (
        section(_title(model, view), width, note),
        _heads(shown, width, grid),
        *_rows(shown, look),
    )


def _first_device(view: MachineView, look: _Look) -> int:
    """Return the position of the first visible device, so that the selected one is in view."""
    visible = look.grid.visible
    if visible >= len(view.devices):
        return 0
    selected = next(
        (
            position
            for position, device in enumerate(view.devices)
            if any(rate.core in look.marked for rate in device.cores)
        ),
        0,
    )
    return max(0, min(selected - visible // 2, len(view.devices) - visible))


def _title(model: TopModel, view: MachineView) -> str:
    version = model.shown.snapshot.neuroncore_version if model.shown.snapshot else ""
    if model.flops:
        rates = f"Avg: {teraflops(view.mean_flops_s)} | Total: {teraflops(view.total_flops_s)}"
    else:
        rates = f"Avg: {percent(view.mean_utilization)}"
    return f" NeuronCore {version} Utilization ({rates})"


def _heads(shown: tuple[DeviceRates, ...], width: int, grid: CoreGrid) -> Line:
    spans: list[Span] = []
    for device in shown[:: grid.lines]:
        spans.append((" " * (DEVICE_LABEL_WIDTH + (1 if spans else 0)), Role.HEAD))
        spans += [(_head(index, grid), Role.HEAD) for index in range(len(device.cores))]
    return fit(spans, width)


def _head(index: int, grid: CoreGrid) -> str:
    for text in (f"NC{index}", str(index)):
        if len(text) < grid.cell:
            return " " + text.center(grid.cell - 1)
    return str(index % 10).ljust(grid.cell)


def _rows(shown: tuple[DeviceRates, ...], look: _Look) -> Iterator[Line]:
    # A row whose devices show what they showed before is not drawn again.
    if not _drawn or _drawn[0][0] != look:
        _drawn[:] = [(look, {})]
    known = _drawn[0][1]
    lines = look.grid.lines
    for line in range(lines):
        devices = shown[line::lines]
        last = known.get(line)
        if last is None or len(last[0]) != len(devices) or not all(map(is_, devices, last[0])):
            last = known[line] = (devices, _line(devices, look))
        yield last[1]


def _line(devices: tuple[DeviceRates, ...], look: _Look) -> Line:
    spans: list[Span] = []
    marked, room = look.marked, look.grid.cell - 1
    lost: tuple[Span, ...] = ((f" {'lost'[:room]:<{room}}", Role.DIM),)
    for device in devices:
        mark, role = ("!", Role.CLASSIC_ALERT) if device.index in look.alerted else (" ", Role.HEAD)
        spans.append((f"{' ' if spans else ''}{mark}ND{device.index:<2d}", role))
        for rate in device.cores:
            spans += lost if device.lost else _cell(rate, look, marked=rate.core in marked)
    return fit(spans, look.width)


def _cell(rate: CoreRate, look: _Look, *, marked: bool) -> tuple[Span, ...]:
    share, cell, style = rate.utilization, look.grid.cell, look.grid.style
    if style is CellStyle.METER:
        return meter(share, cell, colour=look.colour, marked=marked)
    if style is CellStyle.FULL:
        value = bracketed_teraflops(rate.flops_s) if look.flops else bracketed_percent(share)
    else:
        value = short_teraflops(rate.flops_s) if look.flops else short_percent(share)
    if style is CellStyle.VALUE:
        on = Role.MARKED_ON if marked else Role.METER_ON
        off = Role.MARKED_OFF if marked else Role.METER_OFF
        gap = " " * (cell - len(value))
        return ((gap, Role.PLAIN), (value, on if share > 0 else off))
    bar = meter(share, cell - 1 - len(value), colour=look.colour, marked=marked)
    return (_GAP, *bar, (value, Role.PLAIN if share > 0 else Role.DIM))
