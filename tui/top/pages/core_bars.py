"""The cores of every device as bars or heat cells, with the device's memory beside them."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, NamedTuple

from neurontools.tui.top.numbers import short_percent, short_teraflops
from neurontools.tui.widgets.bars import bar, blocks, heat_cell
from neurontools.tui.widgets.frames import MARKER
from neurontools.tui.widgets.lines import Line, Role, Span, fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.machine.machine_view import CoreRate, DeviceRates
    from neurontools.machine.snapshot import DeviceState
    from neurontools.tui.top.model import TopModel

_LABEL = 6
_GAP = 2
_LEAST_BAR_CELL = 9
_LEAST_NUMBER_CELL = 4
_GIB = 1 << 30
_FULL_MEMORY, _MEDIUM_MEMORY, _SHORT_MEMORY = 26, 17, 10
_BARS = {_FULL_MEMORY: 10, _MEDIUM_MEMORY: 6, _SHORT_MEMORY: 4}

_Rows = dict[int, tuple["tuple[object, ...]", Line]]
_drawn: list[tuple[_Look, _Rows]] = []


class CoreBarGrid(NamedTuple):
    """How devices are laid out: `columns` side by side, each core `cell` wide, `memory` cells for the memory."""

    width: int
    columns: int
    lines: int
    cell: int
    memory: int


class _Look(NamedTuple):
    """The parameters of all rows; rows with equal parameters and devices look the same."""

    grid: CoreBarGrid
    flops: bool
    has_rates: bool
    marked: frozenset[int]
    alerted: frozenset[int]


def core_bar_grid(width: int, lines: int, devices: int, cores: int) -> CoreBarGrid:
    """Choose how cores are drawn: one device per line if that fits, then side by side.

    Args:
        width: cells of a line.
        lines: for devices.
        devices: how many there are.
        cores: logical cores of a device.
    """
    devices, cores, lines = max(1, devices), max(1, cores), max(1, lines)
    columns = -(-devices // lines)
    columns = max(1, min(columns, (width + _GAP) // (_LABEL + cores + _GAP)))
    room = (width - (columns - 1) * _GAP) // columns - _LABEL
    memory = next(
        (
            cells
            for cells, least in (
                (_FULL_MEMORY, 2 * _LEAST_BAR_CELL),
                (_MEDIUM_MEMORY, _LEAST_BAR_CELL - 3),
                (_SHORT_MEMORY, _LEAST_NUMBER_CELL),
                (0, 0),
            )
            if room - cells >= cores * least
        ),
        0,
    )
    return CoreBarGrid(width, columns, min(lines, -(-devices // columns)), (room - memory) // cores, memory)


def core_bar_heads(shown: Sequence[DeviceRates], grid: CoreBarGrid) -> Line:
    """Return the heads of the cores and of the memory."""
    spans: list[Span] = []
    for device in shown[:: grid.lines]:
        spans.append((" " * (_LABEL + (_GAP if spans else 0)), Role.DIM))
        for index in range(len(device.cores)):
            name = f"NC{index}" if grid.cell > len(f"NC{index}") else str(index % 10)
            spans.append((name[: grid.cell].ljust(grid.cell), Role.DIM))
        if grid.memory:
            spans.append((" HBM".ljust(grid.memory), Role.DIM))
    return fit(spans, grid.width)


def core_bar_rows(
    shown: Sequence[DeviceRates], states: dict[int, DeviceState], model: TopModel, grid: CoreBarGrid
) -> Iterator[Line]:
    """Yield a line for each row of devices; a line whose devices show what they showed before is not drawn again."""
    alerted = frozenset(model.monitor.alerts_of_device)
    look = _Look(grid, model.flops, model.shown.has_rates, model.tree.marked_cores, alerted)
    if not _drawn or _drawn[0][0] != look:
        _drawn[:] = [(look, {})]
    known = _drawn[0][1]
    for line in range(grid.lines):
        devices = shown[line :: grid.lines]
        parts: tuple[object, ...] = (*devices, *[states.get(device.index) for device in devices])
        last = known.get(line)
        if last is None or len(last[0]) != len(parts) or not all(map(is_, parts, last[0])):
            last = known[line] = (parts, _line(devices, states, look))
        yield last[1]


def _line(devices: Sequence[DeviceRates], states: dict[int, DeviceState], look: _Look) -> Line:
    spans: list[Span] = []
    grid, marked = look.grid, look.marked
    for device in devices:
        if spans:
            spans.append((" " * _GAP, Role.PLAIN))
        cores = device.cores
        is_marked = bool(cores) and all(rate.core in marked for rate in cores)
        is_alerted = device.index in look.alerted or device.lost
        role = Role.ALERT if is_alerted else Role.STRONG if is_marked else Role.HEAD
        spans.append((MARKER, Role.CURSOR) if is_marked else ("!" if is_alerted else " ", role))
        spans.append((f"ND{device.index:<{_LABEL - 3}}", role))
        room = len(cores) * grid.cell
        if device.lost:
            spans.append((f"{'lost':<{room + grid.memory}}"[: room + grid.memory], Role.WARNING))
            continue
        spans += _cores(cores, look, is_marked=is_marked)
        if grid.memory:
            spans += _memory(states.get(device.index), grid.memory)
    return fit(spans, grid.width)


def _cores(cores: Sequence[CoreRate], look: _Look, *, is_marked: bool) -> list[Span]:
    cell, marked = look.grid.cell, look.marked
    if cell < _LEAST_NUMBER_CELL:
        text = blocks([rate.utilization for rate in cores])
        spread = "".join([character + " " * (cell - 1) for character in text])
        return [(spread, Role.STRONG if is_marked else Role.GRAPH)]
    spans: list[Span] = []
    for rate in cores:
        share = rate.utilization
        gap: Span = (MARKER, Role.CURSOR) if not is_marked and rate.core in marked else (" ", Role.PLAIN)
        if cell < _LEAST_BAR_CELL:
            spans += [heat_cell(share, cell - 1), gap]
            continue
        value = short_teraflops(rate.flops_s) if look.flops else short_percent(share)
        if not look.has_rates:
            value = "-".rjust(len(value))
        role = Role.PLAIN if share > 0 else Role.DIM
        spans += [*bar(share, cell - 1 - len(value)), (value, role), gap]
    return spans


def _memory(state: DeviceState | None, cells: int) -> tuple[Span, ...]:
    used, whole = (state.memory_used_bytes, state.memory_bytes) if state else (0, 0)
    share = used / whole if whole else 0.0
    role = Role.PLAIN if used else Role.DIM
    if cells == _SHORT_MEMORY:
        text = f" {short_percent(share)}"
    elif cells == _MEDIUM_MEMORY:
        text = f" {used / _GIB:.0f}/{whole / _GIB:.0f}GB"
    else:
        text = f" {used / _GIB:.1f}/{whole / _GIB:.0f}GB"
    width = _BARS[cells]
    return ((" ", role), *bar(share, width, capacity=True), (f"{text:<{cells - width - 1}}", role))
