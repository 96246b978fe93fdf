"""The classic screen of the real neuron-top, and the overview: its panes with history, processes and events beside them."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import asdict

from neurontools.base.text import plural, printable
from neurontools.dashboard.machine_history import SECOND_NS
from neurontools.machine.memory_tree import MemoryNode, NodeKind
from neurontools.tui.top.numbers import percent, teraflops
from neurontools.tui.top.page import Page
from neurontools.tui.top.pages.columns import job_heads, job_rows
from neurontools.tui.top.pages.core_bars import core_bar_grid, core_bar_heads, core_bar_rows
from neurontools.tui.top.pages.memory import first_row
from neurontools.tui.top.pages.overview_panes import (
    cpu_rows,
    event_rows,
    history_note,
    history_rows,
    machine_minute,
    memory_rows,
    tree_rows,
)
from neurontools.tui.top.pages.rows import modelled_note, tab_at, visible_tabs
from neurontools.tui.top.pages.trends import MemoryTrend, Trends
from neurontools.tui.top.screen import CLASSIC_PANES, classic_frame, layout_for, text_lines
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Line, Role, fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.geometry import Size

    from neurontools.machine.machine_view import DeviceRates
    from neurontools.tui.top.model import TopModel


class ClassicPage(Page):
    """Utilization, vCPUs, memory summary and tree."""

    name = "overview"
    letter = "o"

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return everything between title and bottom bar."""
        shown = classic_frame(model, width, height + 3)
        return [line for name in CLASSIC_PANES for line in shown[name]]

    def wanted_lines(self, model: TopModel) -> int:
        """Return the number of lines for every device and the opened tree."""
        return text_lines(model) - 3

    def scroll(self, model: TopModel, steps: int) -> None:
        """Move the selection in the tree."""
        model.tree.move(steps)

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return the numbers of the current tab."""
        view = model.shown.view
        if view is None:
            return {"devices": [], "memory": None}
        return {
            "mean_utilization": view.mean_utilization,
            "mean_flops_per_s": view.mean_flops_s,
            "total_flops_per_s": view.total_flops_s,
            "devices": [
                {
                    "device": device.index,
                    "lost": device.lost,
                    "cores": [
                        {"core": rate.core, "utilization": rate.utilization, "flops_per_s": rate.flops_s}
                        for rate in device.cores
                    ],
                }
                for device in view.devices
            ],
            "vcpus": {
                "system": {"user": model.shown.system_cpu.user, "system": model.shown.system_cpu.system},
                "runtime": {"user": model.shown.runtime_cpu.user, "system": model.shown.runtime_cpu.system},
            },
            "memory": {
                "host_bytes": asdict(view.memory.host),
                "device_bytes": asdict(view.memory.device),
                "tree": [_node(node) for node in view.memory.tree()],
            },
        }


def _node(node: MemoryNode) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": str(node.kind),
        "number": node.number,
        "name": node.name,
        "device_bytes": node.device_bytes,
        "host_bytes": node.host_bytes,
        "children": [_node(child) for child in node.children],
    }
    if node.kind is NodeKind.MODEL:
        found["running"] = node.running
    return found


def click_classic(model: TopModel, x: int, y: int, size: Size) -> None:
    """Select the row or the tab under the mouse; a click on the selected row toggles it."""
    row = _row_at(model, y, size)
    if row is not None:
        if row == model.tree.selected:
            model.tree.toggle()
        else:
            model.tree.select(row)
    elif y == size.height - 2:
        tab = tab_at(visible_tabs(model, size.width), x)
        if tab is not None:
            model.go_to_tab(tab)


def _row_at(model: TopModel, y: int, size: Size) -> int | None:
    layout = layout_for(model, *size)
    top = size.height - 2 - layout.tree_lines
    if not top <= y < size.height - 2:
        return None
    index = first_row(model, layout.tree_lines) + y - top
    return index if index < len(model.tree.rows) else None


_LEAST_BESIDE = 110
_TALL = 45
_LEFT_SHARE = 0.58
_LEAST_TREE = 3
_MEMORY_ROWS, _CPU_ROWS = 3, 2
_SHORT_MEMORY_ROWS = 2
_REST_S = 10


class OverviewLayout(NamedTuple):
    """Lines of each pane with its frame; 0 for a pane that is not shown. `left` is the width of the left column."""

    width: int
    height: int
    left: int
    boxed: bool
    cores: int
    memory: int
    tree: int
    processes: int
    history: int
    cpu: int


_Panes = tuple["list[Line]", "list[Line]", "list[Line]"]


class OverviewPage(ClassicPage):
    """A dashboard that adapts to the size of the terminal; `--once` prints the classic screen."""

    def __init__(self) -> None:
        super().__init__()
        self._trends = Trends()
        self._memory = MemoryTrend()
        self._second = -1
        self._seen: tuple[object, ...] = (None, None)
        self._rests = False
        self._kept: dict[str, tuple[tuple[object, ...], list[Line]]] = {}
        self._tree_top = 0
        self._tree_first = 0
        self._layout: OverviewLayout | None = None
        self._drawn: tuple[tuple[object, ...], tuple[object, ...], _Panes] | None = None

    def live_lines(self, model: TopModel, width: int, height: int) -> list[Line]:
        """Return the dashboard at a size."""
        layout = self._layout = overview_layout(model, width, height)
        left = self._left(model, layout)
        if layout.left == width:
            return left
        return beside(left, self._right(model, layout))

    def click(self, model: TopModel, x: int, y: int) -> None:
        """Select the row of the tree under the mouse; a click on the selected one opens or closes it."""
        layout = self._layout
        if layout is None or x >= layout.left:
            return
        at = self._tree_first + y - self._tree_top
        if y < self._tree_top or y >= self._tree_top + layout.tree or at >= len(model.tree.rows):
            return
        if at == model.tree.selected:
            model.tree.toggle()
        else:
            model.tree.select(at)

    def _left(self, model: TopModel, layout: OverviewLayout) -> list[Line]:
        cores, memory, tree = self._machine(model, layout)
        lines = list(cores)
        if layout.left == layout.width:
            lines += self._cpu(model, layout.left, layout)
        lines += memory
        self._tree_top = len(lines) + 1
        lines += tree
        if layout.processes and layout.height >= _TALL:
            lines += self._processes(model, layout.left, layout)
        return lines

    def _machine(self, model: TopModel, layout: OverviewLayout) -> _Panes:
        # A machine on which nothing happens is not drawn again: the same view and rows look the same.
        snapshot = model.shown.snapshot
        shown = (
            model.shown.view,
            model.tree.rows,
            model.monitor.alerts,
            model.tab,
            snapshot.devices if snapshot else None,
        )
        how = (layout, model.flops, model.tree.selected)
        if self._drawn and all(map(is_, shown, self._drawn[0])) and how == self._drawn[1]:
            return self._drawn[2]
        panes = (_cores_pane(model, layout), _memory_pane(model, layout), self._tree_pane(model, layout))
        self._drawn = (shown, how, panes)
        return panes

    def _tree_pane(self, model: TopModel, layout: OverviewLayout) -> list[Line]:
        width, boxed = layout.left, layout.boxed
        room = layout.tree - chrome_lines(boxed=boxed)
        count = len(model.tree.rows)
        first = self._tree_first = max(0, min(model.tree.selected - room // 2, count - room))
        note = f"{first + 1}-{min(count, first + room)} of {count}" if count > room else ""
        return framed(
            "Memory Details",
            tree_rows(model, inner_width(width, boxed=boxed), first, room),
            (width, layout.tree),
            note=note or "device      host",
            foot="↑↓ select  ⏎ open  x all",
            boxed=boxed,
        )

    def _right(self, model: TopModel, layout: OverviewLayout) -> list[Line]:
        width = layout.width - layout.left
        inner = inner_width(width, boxed=True)

        def history() -> list[Line]:
            slots = machine_minute(model)
            rows = history_rows(slots, inner, layout.history - 2)
            return framed("History", rows, (width, layout.history), key="F2", note=history_note(slots))

        lines = list(self._each_second("history", model, (width, layout.history), history))
        lines += self._cpu(model, width, layout)
        if layout.height < _TALL:
            lines += self._processes(model, width, layout)
        else:
            lines += self._memory_history(model, width, layout.height // 5)
        room = layout.height - len(lines)

        def events() -> list[Line]:
            alerts = len(model.monitor.alerts)
            note = plural(alerts, "alert") if alerts else "no alerts"
            return framed("Events", event_rows(model, inner, room - 2), (width, room), key="F5", note=note)

        return [*lines, *self._each_second("events", model, (width, room, model.monitor.alerts), events)]

    def _memory_history(self, model: TopModel, width: int, height: int) -> list[Line]:
        def draw() -> list[Line]:
            slots = self._memory.look(model)
            rows = history_rows(slots, inner_width(width, boxed=True), height - 2)
            return framed("HBM in Use", rows, (width, height), note=history_note(slots))

        return self._each_second("memory", model, (width, height), draw)

    def _cpu(self, model: TopModel, width: int, layout: OverviewLayout) -> list[Line]:
        rows = cpu_rows(model, inner_width(width, boxed=layout.boxed))
        return framed("vCPU", rows, (width, layout.cpu), note=modelled_note(model), boxed=layout.boxed)

    def _processes(self, model: TopModel, width: int, layout: OverviewLayout) -> list[Line]:
        inner = inner_width(width, boxed=True)

        def draw() -> list[Line]:
            room = layout.processes - 3
            rows = [fit(((" ", job_heads(inner)[1]), job_heads(inner)), inner)]
            rows += [
                fit(((" ", job_heads(inner)[1]), *spans), inner)
                for spans in job_rows(model, self._trends, inner, room)
            ]
            if len(rows) == 1:
                rows.append(fit(((" no process uses a device", Role.DIM),), inner))
            note = str(len(model.shown.processes)) if model.shown.processes else "none"
            return framed("Processes", rows, (width, layout.processes), key="F3", note=note)

        key = (width, layout.processes, model.shown.has_rates, model.tabs)
        return self._each_second("processes", model, key, draw)

    def _each_second(
        self, name: str, model: TopModel, key: tuple[object, ...], draw: Callable[[], list[Line]]
    ) -> list[Line]:
        # Panes about a minute need not follow ten updates a second, nor each second of a machine that rests.
        snapshot = model.shown.snapshot
        second = snapshot.taken_ns // SECOND_NS if snapshot else 0
        if second != self._second:
            seen = (model.shown.rates, snapshot.processes if snapshot else None)
            self._rests = all(map(is_, seen, self._seen))
            if second != self._second + 1:  # while another page was shown, or in recordings
                self._trends.forget()
                self._memory.forget()
            self._second, self._seen = second, seen
        rested = second // _REST_S if self._rests else second
        now = (rested, self._rests, model.position, *key)
        kept = self._kept.get(name)
        if kept is None or kept[0] != now:
            kept = self._kept[name] = (now, draw())
        return kept[1]


def overview_layout(model: TopModel, width: int, height: int) -> OverviewLayout:
    """Divide the page among the panes; the sum of each column is its height."""
    devices = model.shown.view.devices if model.shown.view else ()
    count, cores = max(1, len(devices)), max((len(device.cores) for device in devices), default=1)
    boxed = is_boxed(width, height)
    frame = chrome_lines(boxed=boxed)
    is_wide = boxed and width >= _LEAST_BESIDE
    left = int(width * _LEFT_SHARE) if is_wide else width
    memory = frame + (_MEMORY_ROWS if boxed else _SHORT_MEMORY_ROWS)
    cpu = frame + _CPU_ROWS
    rest = height - memory - (0 if is_wide else cpu)
    most = max(1, rest - frame - frame - _LEAST_TREE - boxed)
    wanted = count if count <= most else -(-count // 2)
    if not boxed and count > 4:
        wanted = min(wanted, max(1, most - 2))
    rows = core_bar_grid(inner_width(left, boxed=boxed), min(wanted, most), count, cores).lines
    core_lines = frame + rows + boxed
    rest -= core_lines
    tree, processes, history = rest, 0, 0
    if is_wide:
        history = max(7, height // 4)
        if height >= _TALL:
            tree = rest // 3
            processes = rest - tree
            history = height // 3
        else:
            processes = (height - history - cpu) // 2
    return OverviewLayout(width, height, left, boxed, core_lines, memory, tree, processes, history, cpu)


def _memory_pane(model: TopModel, layout: OverviewLayout) -> list[Line]:
    boxed = layout.boxed
    found = list(memory_rows(model, inner_width(layout.left, boxed=boxed)))
    if layout.memory - chrome_lines(boxed=boxed) < _MEMORY_ROWS:
        found = [found[0], found[2]]
    return framed("Memory", found, (layout.left, layout.memory), boxed=boxed)


def _cores_pane(model: TopModel, layout: OverviewLayout) -> list[Line]:
    view, snapshot, width, boxed = model.shown.view, model.shown.snapshot, layout.left, layout.boxed
    size = (width, layout.cores)
    if view is None or snapshot is None:
        return framed("NeuronCores", [], size, boxed=boxed)
    inner = inner_width(width, boxed=boxed)
    rows = layout.cores - chrome_lines(boxed=boxed) - boxed
    cores = max((len(device.cores) for device in view.devices), default=1)
    grid = core_bar_grid(inner, rows, len(view.devices), cores)
    shown = _visible(model, view.devices, grid.columns * grid.lines)
    states = {device.index: device for device in snapshot.devices}
    body = [core_bar_heads(shown, grid)] if boxed else []
    body += core_bar_rows(shown, states, model, grid)
    if model.flops and model.shown.has_rates:
        note = f"avg {teraflops(view.mean_flops_s).strip()}  total {teraflops(view.total_flops_s).strip()}"
    elif not model.shown.has_rates:
        note = "no rates yet"
    else:
        note = f"avg {percent(view.mean_utilization).strip()}"
    if len(shown) < len(view.devices):
        note = f"ND{shown[0].index}-ND{shown[-1].index} of {len(view.devices)}  {note}"
    of = f" of {printable(model.tab.label)}" if model.tab.key else ""
    return framed(f"NeuronCores {snapshot.neuroncore_version}{of}", body, size, note=note, boxed=boxed)


def _visible(model: TopModel, devices: Sequence[DeviceRates], room: int) -> Sequence[DeviceRates]:
    """Return the devices that have room, the selected one among them."""
    if room >= len(devices):
        return devices
    marked = model.tree.marked_cores
    selected = next(
        (at for at, device in enumerate(devices) if any(rate.core in marked for rate in device.cores)), 0
    )
    first = max(0, min(selected - room // 2, len(devices) - room))
    return devices[first : first + room]
