"""The NeuronCore pane, the vCPU pane and the one-line panes as text (AWS Neuron documentation, neuron-top user guide)."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, NamedTuple

from neurontools import __version__
from neurontools.base.text import printable
from neurontools.dashboard.process_rows import is_modelled
from neurontools.machine.machine_view import CoreRate, DeviceRates, MachineView, process_key
from neurontools.tui.top.layout import DEVICE_LABEL_WIDTH, CellStyle, CoreGrid
from neurontools.tui.top.numbers import (
    bracketed_cpu,
    bracketed_percent,
    bracketed_teraflops,
    percent,
    short_percent,
    short_teraflops,
    teraflops,
)
from neurontools.tui.widgets.lines import Line, Role, Span, dotted, fit, fixed, meter, stacked_meter, width_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from neurontools.machine.host import CpuShare
    from neurontools.tui.top.model import TopModel


_CPU_LABEL_WIDTH = 21
_CPU_VALUE_WIDTH = 15
_TABS_HEAD = " Neuron Apps   "
_TABS_GAP = 2
_TAB_WIDTH = 24
_KEYS = (
    ("q", "quit"),
    ("arrows", "move tree selection"),
    ("enter", "expand/collapse tree item"),
    ("x", "expand/collapse entire tree"),
    ("a/d", "previous/next tab"),
    ("f", "FLOPS on/off"),
    ("1-9", "select tab"),
    ("?", "help"),
)
_SHORT_KEYS = (
    ("q", "quit"),
    ("?", "help"),
    ("arrows", "move"),
    ("enter", "expand"),
    ("x", "all"),
    ("a/d", "tabs"),
    ("f", "FLOPS"),
)


def section_heads(texts: Iterable[str], width: int) -> Line:
    """Return the bar above a pane with column heads, each a span of its own so that fonts keep them aligned."""
    return fit(((text, Role.SECTION) for text in texts), width, Role.SECTION)


def section(text: str, width: int, note: str = "") -> Line:
    """Return the bar above a pane: its name on the left, a note on the right if there is room."""
    room = width - width_of(note) - 2
    if not note or room < width_of(text) + 2:
        return fit(((text, Role.SECTION),), width, Role.SECTION)
    return (*fit(((text, Role.SECTION),), room, Role.SECTION), (note + "  ", Role.SECTION_DIM))


def title_line(model: TopModel, width: int) -> Line:
    """Return the title bar: program, instance, the source on the left, and any problem."""
    snapshot = model.shown.snapshot
    text = f"neuron-top {__version__}"
    if snapshot is not None:
        text += f" running on {printable(snapshot.instance_id)} ({printable(snapshot.instance_type)})"
    notes = map(printable, filter(None, (model.position, model.trouble)))
    problems = ", ".join(notes) or _alerts(model)
    trouble = f" {problems} " if problems else ""
    room = width - width_of(trouble)
    if trouble and room < width_of(text) + 2:
        return dotted(((trouble.rstrip(), Role.TROUBLE),), width, Role.TITLE)
    left = max(0, min((width - width_of(text)) // 2, room - width_of(text) - 1))
    source = f" {printable(model.source)} " if model.source else ""
    if width_of(source) + width_of(text) > room:
        source = ""
    blank = " " * max(0, left - width_of(source))
    bar = dotted(((source, Role.TITLE_DIM), (blank, Role.TITLE), (text, Role.TITLE)), room, Role.TITLE)
    return (*bar, (trouble, Role.TROUBLE)) if trouble else bar


def _alerts(model: TopModel) -> str:
    alerts = model.monitor.alerts
    if not alerts:
        return ""
    if len(alerts) == 1:
        return f"! {printable(alerts[0].text)}"
    return f"! {len(alerts)} alerts"


def cpu_lines(model: TopModel, width: int) -> tuple[Line, ...]:
    """Return the vCPU pane: its bar, the host, and the machine's processes."""
    return (
        section(" vCPU Utilization", width, modelled_note(model)),
        _cpu_line(" System vCPU Usage", model.shown.system_cpu, width, colour=model.colour),
        _cpu_line(" Runtime vCPU Usage", model.shown.runtime_cpu, width, colour=model.colour),
    )


def modelled_note(model: TopModel) -> str:
    """Return how many of the shown processes have modelled CPU use, "" if none has."""
    # Measured on this host and modelled by a scenario stand below each other, and need not agree.
    only = model.tab.key
    processes = [
        process
        for process in (model.shown.snapshot.processes if model.shown.snapshot else ())
        if process.uses_device and (only is None or process_key(process) == only)
    ]
    count = sum(map(is_modelled, processes))
    if not count:
        return ""
    return (
        "Runtime: modelled" if count == len(processes) else f"Runtime: {count} of {len(processes)} modelled"
    )


class PlacedTab(NamedTuple):
    """A name in a bar of names: its index, its text, and its columns, which begin a cell before the text."""

    position: int
    text: str
    left: int
    right: int


def place_tabs(
    texts: Sequence[str], current: int, left: int, width: int, gap: int = 0
) -> tuple[PlacedTab, ...]:
    """Return the names that fit into a bar, including the current one.

    Args:
        texts: the names.
        current: index of the current one.
        left: column of the first name.
        width: cells in the bar.
        gap: cells between two names.
    """
    widths = [width_of(text) + 2 for text in texts]
    first = 0
    while first < current and sum(widths[first : current + 1]) > width - left:
        first += 1
    placed: list[PlacedTab] = []
    for position in range(first, len(texts)):
        right = left + widths[position]
        if right > width and placed:
            break
        placed.append(PlacedTab(position, texts[position], left, right))
        left = right + gap
    return tuple(placed)


def tabs_line(head: str, tabs: Sequence[PlacedTab], current: int, width: int) -> Line:
    """Return a bar of names, the current one between `>` and `<`."""
    spans: list[Span] = []
    drawn = 0
    for position, text, left, right in tabs:
        spans.append((" " * (left - drawn) if drawn else head[:left], Role.BAR_DIM))
        if position == current:
            spans += [(">", Role.BAR), (text, Role.BAR_CURRENT), ("<", Role.BAR)]
        else:
            spans.append((f" {text} ", Role.BAR))
        drawn = right
    return fit(spans, width, Role.BAR)


def tab_at(tabs: Iterable[PlacedTab], x: int) -> int | None:
    """Return the index of the name at a column of a bar, or None."""
    for tab in tabs:
        if tab.left <= x < tab.right:
            return tab.position
    return None


def hints_line(hints: Iterable[tuple[str, str]], width: int) -> Line:
    """Return the bar of keys and what they do, as many as fit."""
    spans: list[Span] = []
    left = width
    for key, text in hints:
        left -= width_of(key) + width_of(text) + 4
        if left < 0:
            break
        spans += [(f" {key}: ", Role.BAR), (f"{text} ", Role.BAR_DIM)]
    return fit(spans, width, Role.BAR)


def visible_tabs(model: TopModel, width: int) -> tuple[PlacedTab, ...]:
    """Return the processes at the bottom that fit, with the real tool's gaps if all of them do."""
    alerted = model.monitor.alerts_of_pid
    texts = [
        f"[{index + 1}]:{'!' if tab.key and tab.key[0] in alerted else ''}{fixed(tab.label, _TAB_WIDTH).rstrip()}"
        for index, tab in enumerate(model.tabs)
    ]
    begin, needed = len(_TABS_HEAD), sum(width_of(text) + 2 + _TABS_GAP for text in texts) - _TABS_GAP
    left, gap = (begin, _TABS_GAP) if begin + needed <= width else (begin - 1, 0)
    return place_tabs(texts, model.tabs.index(model.tab), left, width, gap)


def bottom_lines(model: TopModel, width: int) -> tuple[Line, ...]:
    """Return the bar at the bottom: the tabs, and the keys."""
    tabs = tabs_line(_TABS_HEAD, visible_tabs(model, width), model.tabs.index(model.tab), width)
    needed = sum(len(key) + len(text) + 4 for key, text in _KEYS)
    return tabs, hints_line(_KEYS if needed < width else _SHORT_KEYS, width)


def _cpu_line(label: str, share: CpuShare, width: int, *, colour: bool) -> Line:
    value = bracketed_cpu(share.user, share.system)
    room = width - _CPU_LABEL_WIDTH - max(_CPU_VALUE_WIDTH, len(value)) - 1
    bar = stacked_meter(share.user, share.system, room, colour=colour)
    return fit(((fixed(label, _CPU_LABEL_WIDTH), Role.PLAIN), *bar, (value, Role.PLAIN)), width)


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
