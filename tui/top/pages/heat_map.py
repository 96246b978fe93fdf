"""Rows of the heat map: a cell with its number for each core, then the last minute, memory and errors of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from neurontools.base.text import printable
from neurontools.tui.top.numbers import short_percent
from neurontools.tui.top.pages.curves import values_of
from neurontools.tui.widgets.bars import bar, blocks, heat_cell
from neurontools.tui.widgets.frames import row
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed

if TYPE_CHECKING:
    from neurontools.machine.snapshot import DeviceState
    from neurontools.tui.top.model import TopModel

_LABEL = 6
_WIDEST_CELL = 9
_MEANS = 14
_ERRORS = 8
_SHORT_MEMORY, _BAR = 6, 10
_LONG_MEMORY = _BAR + 15
_MOST_TREND = 60
_LEAST_TREND = 20
_LEAST_NAMES = 12
_GIB = 1 << 30


class HeatMapLayout(NamedTuple):
    """Cells of each column; 0 for a column without room."""

    cores: int
    cell: int
    means: int
    trend: int
    memory: int
    errors: int
    names: int


def heat_map_layout(width: int, cores: int) -> HeatMapLayout:
    """Divide a line among the columns; cells of cores come first."""
    room = width - _LABEL - 1
    facts = _MEANS + _SHORT_MEMORY + _ERRORS
    cell = max(1, min(_WIDEST_CELL, (room - facts) // max(1, cores)))
    left = room - cores * cell
    means = _MEANS if left >= _MEANS else 0
    left -= means
    memory = _LONG_MEMORY if left >= _LONG_MEMORY + _ERRORS else _SHORT_MEMORY if left >= _SHORT_MEMORY else 0
    left -= memory
    errors = _ERRORS if left >= _ERRORS else 0
    left -= errors
    trend = min(_MOST_TREND, left - 2) if left >= _LEAST_TREND + 2 else 0
    left -= trend + 2 if trend else 0
    return HeatMapLayout(cores, cell, means, trend, memory, errors, left if left >= _LEAST_NAMES else 0)


def heat_map_heads(layout: HeatMapLayout, width: int) -> Line:
    """Return the heads of the columns."""
    text = " " * (_LABEL + 1)
    for index in range(layout.cores):
        name = f"NC{index}" if layout.cell > len(f"NC{index}") else str(index % 10)
        text += name[: layout.cell].center(layout.cell)
    if layout.means:
        text += f"{'mean':>7}{'peak':>7}"
    if layout.trend:
        text += f"  {'last minute':<{layout.trend}}"
    if layout.memory:
        text += f"  {'HBM':<{layout.memory - 2}}"
    if layout.errors:
        text += f"{'ECC':>{layout.errors}}"
    if layout.names:
        text += "  processes"
    return fit(((text, Role.DIM),), width)


def heat_map_row(
    model: TopModel, device: DeviceState, layout: HeatMapLayout, width: int, *, selected: bool
) -> Line:
    """Return the row of a device; a lost one shows no numbers, which would be old."""
    alerts = model.monitor.alerts_of_device.get(device.index)
    is_alerted = bool(alerts) or device.lost
    label = f"{'!' if is_alerted else ' '}ND{device.index:<{_LABEL - 3}}"
    spans: list[Span] = [(label, Role.ALERT if is_alerted else Role.STRONG if selected else Role.HEAD)]
    errors = sum(msgspec.structs.asdict(device.hardware).values())
    if device.lost:
        gap = layout.cores * layout.cell + layout.means + layout.memory
        gap += layout.trend + 2 if layout.trend else 0
        spans.append((fixed("lost", gap), Role.WARNING))
    else:
        spans += _measured(model, device, layout)
    if layout.errors:
        spans.append((f"{errors:>{layout.errors}}", Role.ALERT if errors else Role.DIM))
    if layout.names:
        spans.append((fixed(f"  {_names(model, device)}", layout.names), Role.DIM))
    return row(spans, width, selected=selected)


def _measured(model: TopModel, device: DeviceState, layout: HeatMapLayout) -> list[Span]:
    shares = [
        model.shown.rates[core].utilization if core in model.shown.rates else 0.0
        for core in sorted(device.core_ids)
    ]
    spans: list[Span] = []
    for share in shares:
        spans.append(heat_cell(share, max(1, layout.cell - 1)))
        if layout.cell > 1:
            spans.append((" ", Role.PLAIN))
    if len(shares) < layout.cores:
        spans.append((" " * ((layout.cores - len(shares)) * layout.cell), Role.PLAIN))
    if layout.means:
        mean = sum(shares) / len(shares) if shares else 0.0
        text = f"{100 * mean:6.1f}%{100 * max(shares, default=0.0):6.1f}%"
        spans.append((text, Role.PLAIN if mean else Role.DIM))
    if layout.trend:
        values = values_of(model.history.minute(("device", device.index)))
        count = len(values)
        drawn = blocks(
            [values[at * count // layout.trend] for at in range(layout.trend)] if values else [],
            headroom=True,
        )
        spans.append((f"  {drawn:<{layout.trend}}", Role.GRAPH))
    if layout.memory:
        spans += _memory(device, layout.memory)
    return spans


def _memory(device: DeviceState, cells: int) -> tuple[Span, ...]:
    used, whole = device.memory_used_bytes, device.memory_bytes
    share = used / whole if whole else 0.0
    role = Role.PLAIN if used else Role.DIM
    if cells < _LONG_MEMORY:
        return ((f"  {short_percent(share)}", role),)
    text = f" {used / _GIB:.1f}/{whole / _GIB:.0f}GB"
    return (("  ", role), *bar(share, _BAR, capacity=True), (f"{text:<{cells - _BAR - 2}}", role))


def _names(model: TopModel, device: DeviceState) -> str:
    own = set(device.core_ids)
    names = [
        printable(one.process.tag or one.process.command)
        for one in model.shown.processes
        if any(use.core in own for use in one.process.cores)
    ]
    counted = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counted.items())
