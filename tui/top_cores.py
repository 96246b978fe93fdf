"""The NeuronCore pane of neuron-top as lines of text: a row for each device, a bar for each logical core."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

from neurontools.tui.lines import Line, Role, Span, fit
from neurontools.tui.meter import meter
from neurontools.tui.top_format import (
    bracketed_percent,
    bracketed_teraflops,
    percent,
    short_percent,
    short_teraflops,
    teraflops,
)
from neurontools.tui.top_layout import DEVICE_LABEL_WIDTH, CellStyle
from neurontools.tui.top_rows import section

if TYPE_CHECKING:
    from neurontools.machine.view import CoreRate, DeviceRates, MachineView
    from neurontools.tui.top_layout import CoreGrid
    from neurontools.tui.top_model import TopModel


_How = tuple[int, "CoreGrid", bool, bool, frozenset[int], frozenset[int]]
_drawn: dict[int, tuple[_How, tuple[DeviceRates, ...], Line]] = {}


def core_lines(model: TopModel, width: int, grid: CoreGrid) -> tuple[Line, ...]:
    """Return the pane: its bar, the heads, and the device rows that fit (those around the selected device)."""
    view = model.view
    if view is None:
        return (section(" NeuronCore Utilization", width), *(fit((), width) for _ in range(grid.lines + 1)))
    start = first_device(model, view, grid)
    shown = view.devices[start : start + grid.visible]
    note = ""
    if len(shown) < len(view.devices):
        note = f"ND{shown[0].index}-ND{shown[-1].index} of {len(view.devices)}"
    return (
        section(_title(model, view), width, note),
        _heads(shown, width, grid),
        *(_remembered(model, line, shown[line :: grid.lines], width, grid) for line in range(grid.lines)),
    )


def first_device(model: TopModel, view: MachineView, grid: CoreGrid) -> int:
    """Return the position of the first visible device, so that the selected one is in view."""
    marked = model.tree.marked_cores
    selected = next(
        (
            position
            for position, device in enumerate(view.devices)
            if any(rate.core in marked for rate in device.cores)
        ),
        0,
    )
    return max(0, min(selected - grid.visible // 2, len(view.devices) - grid.visible))


def _title(model: TopModel, view: MachineView) -> str:
    version = model.snapshot.neuroncore_version if model.snapshot else ""
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


def _remembered(
    model: TopModel, line: int, devices: tuple[DeviceRates, ...], width: int, grid: CoreGrid
) -> Line:
    # A row whose devices show what they showed before is not drawn again.
    how = (
        width,
        grid,
        model.flops,
        model.colour,
        model.tree.marked_cores,
        frozenset(model.lookout.alerts_of_device),
    )
    last = _drawn.get(line)
    if (
        last is not None
        and last[0] == how
        and len(last[1]) == len(devices)
        and all(map(is_, devices, last[1]))
    ):
        return last[2]
    drawn = _line(model, devices, width, grid)
    _drawn[line] = (how, devices, drawn)
    return drawn


def _line(model: TopModel, devices: tuple[DeviceRates, ...], width: int, grid: CoreGrid) -> Line:
    spans: list[Span] = []
    marked = model.tree.marked_cores
    for device in devices:
        mark, role = ("!", Role.ALERT) if device.index in model.lookout.alerts_of_device else (" ", Role.HEAD)
        spans.append((f"{' ' if spans else ''}{mark}ND{device.index:<2d}", role))
        for rate in device.cores:
            spans += _lost(grid) if device.lost else _cell(model, rate, grid, marked=rate.core in marked)
    return fit(spans, width)


def _lost(grid: CoreGrid) -> tuple[Span, ...]:
    return ((f" {'lost'[: grid.cell - 1]:<{grid.cell - 1}}", Role.DIM),)


def _cell(model: TopModel, rate: CoreRate, grid: CoreGrid, *, marked: bool) -> tuple[Span, ...]:
    busy = rate.utilization > 0
    if grid.style is CellStyle.METER:
        return meter(rate.utilization, grid.cell, colour=model.colour, marked=marked)
    if grid.style is CellStyle.FULL:
        value = bracketed_teraflops(rate.flops_s) if model.flops else bracketed_percent(rate.utilization)
    else:
        value = short_teraflops(rate.flops_s) if model.flops else short_percent(rate.utilization)
    if grid.style is CellStyle.VALUE:
        on = Role.MARKED_ON if marked else Role.METER_ON
        off = Role.MARKED_OFF if marked else Role.METER_OFF
        gap = " " * (grid.cell - len(value))
        return ((gap, Role.PLAIN), (value, on if busy else off))
    bar = meter(rate.utilization, grid.cell - 1 - len(value), colour=model.colour, marked=marked)
    return ((" ", Role.PLAIN), *bar, (value, Role.PLAIN if busy else Role.DIM))
