"""The pages of modelled time by code: a flame graph of modules or lines, and the program's files."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from neurontools.base import units
from neurontools.profiler.analysis.operators import UNKNOWN, By, GroupParts, slowest_event
from neurontools.profiler.analysis.tree import (
    SourceFile,
    SourceLine,
    TreeKind,
    TreeNode,
    operators_below,
    source_files,
    tree,
)
from neurontools.tui.profile.page import (
    OPEN,
    PARTS_NOTE,
    ProfileListPage,
    ProfilePage,
    ShowEvent,
    part_lines,
    short_name,
)
from neurontools.tui.widgets.bars import CELLS, bar
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Line, Role, Span, fact_lines, fit, fixed, width_of
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual import events

    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.theme import Theme


_BAR = 16
_COLUMNS = (
    TableColumn("below it", right=False),
    TableColumn("count", 8, rank=2),
    TableColumn("time", 10),
    TableColumn("of it", 6),
    TableColumn("", _BAR, right=False, rank=3),
    TableColumn("own time", 10, rank=1),
)
_OPERATORS_FROM = 110
_FACT = 13
_SHADES = CELLS[1:5]
_Path = tuple[int, ...]


class TreePage(ProfilePage):
    """An icicle graph from the top down. A path is the places of children from the root on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "go('up')", "parent", key_display="↑/k", show=False),
        Binding("down,j", "go('down')", "first child", key_display="↓/j", show=False),
        Binding("left,h", "go('left')", "neighbour on the left", key_display="←/h", show=False),
        Binding("right,l", "go('right')", "neighbour on the right", key_display="→/l", show=False),
        Binding("enter", "zoom", "zoom in", key_display="⏎", show=False),
        Binding("escape,backspace", "unzoom", "zoom out", show=False),
        Binding("t", "kind", "layers or source lines", show=False),
    ]
    title = "Tree"

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self._kind = TreeKind.LAYER
        self._trees: dict[TreeKind, TreeNode] = {}
        self._path: _Path = ()
        self._zoomed: _Path = ()
        self._places: list[list[tuple[int, int, _Path]]] = []
        self._inset = 0
        self._is_new = True

    @property
    def root(self) -> TreeNode:
        """The tree."""
        if self._kind not in self._trees:
            self._trees[self._kind] = tree(self._trace, self._kind)
        return self._trees[self._kind]

    def node(self, path: _Path) -> TreeNode:
        """Return a branch."""
        node = self.root
        for child in path:
            node = node.children[child]
        return node

    def action_go(self, where: str) -> None:
        """Select another branch below the zoomed one."""
        path = self._path
        if where == "down":
            path = (*path, 0) if self.node(path).children else path
        elif len(path) > len(self._zoomed):
            *parent, child = path
            size = len(self.node(tuple(parent)).children)
            step = {"left": -1, "right": 1, "up": 0}[where]
            path = tuple(parent) if where == "up" else (*parent, max(0, min(size - 1, child + step)))
        self._path = path
        self.draw()

    def action_zoom(self) -> None:
        """Let the selected branch have the whole width."""
        self._zoomed = self._path
        self.draw()

    def action_unzoom(self) -> None:
        """Zoom to the branch above."""
        self._path = self._zoomed
        self._zoomed = self._zoomed[:-1]
        self.draw()

    def action_kind(self) -> None:
        """Change between layers and source lines."""
        self._kind = TreeKind.SOURCE if self._kind is TreeKind.LAYER else TreeKind.LAYER
        self._path = self._zoomed = ()
        self._start()
        self.draw()

    def _start(self) -> None:
        """Select the first branch that is not alone; begin with source lines where the profile knows no layers."""
        if self._is_new and [child.name for child in self.root.children] == [UNKNOWN]:
            self._kind = TreeKind.SOURCE
        self._is_new = False
        node = self.root
        while len(node.children) == 1 and node.children[0].children:
            node, self._path = node.children[0], (*self._path, 0)

    def on_click(self, event: events.Click) -> None:
        """Select the branch at the pointer; a second click zooms to it."""
        line = event.y - 1
        if not 0 <= line < len(self._places):
            return
        for first, last, path in self._places[line]:
            if first <= event.x - self._inset < last:
                if path == self._path:
                    self.action_zoom()
                self._path = path
        self.draw()

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the graph, and the branches below the selected one as a table."""
        if self._is_new:
            self._start()
        if not self.root.children:
            reason = "The profile has no device records, so no tree."
            return self.no_data(reason)
        boxed = is_boxed(width, height)
        inner = inner_width(width, boxed=boxed)
        self._inset = 1 if boxed else 0
        edges = chrome_lines(boxed=boxed)
        rows = self._graph(inner, max(height // 2 - edges, 1))
        upper = len(rows) + edges
        foot = "←↑↓→ select  ⏎ zoom in  esc zoom out  t layers or source"
        clock = "measured" if self._trace.measured_by else "modelled"
        note = f"{units.format_ns(self.root.total_ns)}, {clock}"
        title = f"{self.title} by {self._kind}"
        panes = framed(title, rows, (width, upper), note=note, foot=foot, boxed=boxed)
        if height - upper > edges:
            panes += self._selected((width, height - upper), boxed=boxed)
        return panes

    def _selected(self, size: tuple[int, int], *, boxed: bool) -> list[Line]:
        """Return the branches below the selected one and, where there is room, the operators of all of it."""
        chosen, (width, height) = self.node(self._path), size
        across = width - width * 2 // 5 if width >= _OPERATORS_FROM else width
        name = short_name(chosen.name) or "everything"
        note = (
            f"{units.format_ns(chosen.total_ns)}, {chosen.total_ns / max(self.root.total_ns, 1):.1%} of all"
        )
        table = self._table(chosen, inner_width(across, boxed=boxed))
        left = framed(name, table, (across, height), note=note, boxed=boxed)
        if across == width:
            return left
        rest = width - across
        operators = part_lines(
            operators_below(chosen), "", inner_width(rest, boxed=boxed), height - chrome_lines(boxed=boxed)
        )
        right = framed(f"Operators of {name}", operators, (rest, height), note=PARTS_NOTE, boxed=boxed)
        return beside(left, right)

    def _graph(self, width: int, most: int) -> list[Line]:
        """Return a line for each level; a branch stands below its parent, as wide as its time."""
        self._places = []
        level: list[tuple[int, int, _Path]] = [(0, width, self._zoomed)]
        lines: list[Line] = []
        while level and len(lines) < most:
            self._places.append(level)
            lines.append(self._level(level, width))
            below: list[tuple[int, int, _Path]] = []
            for first, last, path in level:
                node = self.node(path)
                done = 0
                for number, child in enumerate(node.children):
                    left = first + (last - first) * done // max(node.total_ns, 1)
                    done += child.total_ns
                    right = first + (last - first) * done // max(node.total_ns, 1)
                    if right > left:
                        below.append((left, right, (*path, number)))
            level = below
        return lines

    def _level(self, level: list[tuple[int, int, _Path]], width: int) -> Line:
        spans: list[Span] = []
        drawn = 0
        for first, last, path in level:
            if first > drawn:
                spans.append((" " * (first - drawn), Role.PLAIN))
            node = self.node(path)
            name = short_name(node.name) or "everything"
            shade = Role.TAB_CURRENT if path == self._path else _SHADES[sum(path) % len(_SHADES)]
            mark = "▌" if path == self._path else " " if last - first > 1 else ""
            spans.append((fixed(f"{mark}{name}", last - first), shade))
            drawn = last
        return fit(spans, width)

    def _table(self, node: TreeNode, width: int) -> list[Line]:
        layout = TableLayout(_COLUMNS, width)
        rows: list[Line] = [layout.head()]
        for child in node.children:
            share = child.total_ns / max(node.total_ns, 1)
            cells = (
                (short_name(child.name), Role.PLAIN),
                (str(child.count), Role.DIM),
                (units.format_ns(child.total_ns), Role.VALUE),
                (f"{100 * share:.1f}%", Role.PLAIN),
                bar(share, _BAR),
                (units.format_ns(child.self_ns), Role.PLAIN),
            )
            rows.append(layout.line(cells))
        return rows if node.children else [*_facts(node, width)]


def _facts(node: TreeNode, width: int) -> Iterator[Line]:
    """Yield the numbers of an operator."""
    seconds = node.total_ns / 1e9
    facts = [("events", str(node.count)), ("time", units.format_ns(node.total_ns))]
    if node.flops:
        facts.append(("operations", f"{units.format_count(node.flops)}flop"))
    if node.bytes_moved:
        facts.append(("HBM", f"{units.format_count(node.bytes_moved)}B"))
    if seconds and node.flops:
        facts.append(("throughput", f"{units.format_count(node.flops / seconds)}flop/s"))
    if seconds and node.bytes_moved:
        facts.append(("bandwidth", f"{units.format_count(node.bytes_moved / seconds)}B/s"))
    for name, value in facts:
        yield from fact_lines(name, value, width, _FACT)


_SOURCE_BAR = 12
_SOURCE_COLUMNS = (
    TableColumn("time", 10),
    TableColumn("share", 6),
    TableColumn("", _SOURCE_BAR, right=False, rank=1),
    TableColumn("line", 5),
    TableColumn("", right=False, least=44),
)
_ABOVE = 3
_BESIDE_FROM, _SIDE = 160, 68
_FRAME = 14
_PARTS = (By.OPERATOR, By.SHAPE, By.LAYER)


class SourcePage(ProfileListPage):
    """One file; the hottest line is selected at first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "file(1)", "next file", show=False),
        Binding("shift+tab", "file(-1)", "previous file", show=False),
        Binding("n", "hot(1)", "next line with work", show=False),
        Binding("N", "hot(-1)", "previous line with work", show=False),
        OPEN,
    ]
    title = "Source"

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self._at = 0
        self._is_new = True

    @cached_property
    def _files(self) -> tuple[SourceFile, ...]:
        return source_files(self._trace)

    @cached_property
    def _parts(self) -> GroupParts:
        return GroupParts(self._trace)

    @property
    def file(self) -> SourceFile:
        """The file that is shown."""
        return self._files[self._at]

    @property
    def count(self) -> int:
        """Number of lines."""
        return len(self.file.lines) if self._files else 0

    def action_file(self, step: int) -> None:
        """Show another file."""
        if self._files:
            self._at = (self._at + step) % len(self._files)
            self._is_new = True
        self.draw()

    def action_hot(self, step: int) -> None:
        """Select the next line with work."""
        if self._files:
            lines = self.file.lines
            at = self.cursor.row + step
            while 0 <= at < len(lines) and lines[at].total is None:
                at += step
            if 0 <= at < len(lines):
                self.cursor.row = at
        self.draw()

    def action_open(self) -> None:
        """Show the slowest event of the line in the timeline."""
        total = self.file.lines[self.cursor.row].total if self._files else None
        event = slowest_event(self._trace, By.SOURCE, total.name) if total else None
        if event is not None:
            self.post_message(ShowEvent(event))

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the file and, where there is room, what its selected line consists of."""
        if not self._files:
            reason = "The profile has no lines of source: its operators were not called from a file."
            return self.no_data(reason)
        if width < _BESIDE_FROM or not is_boxed(width, height):
            return self._file_lines(width, height)
        return beside(self._file_lines(width - _SIDE, height), self._line_parts(_SIDE, height))

    def _line_parts(self, width: int, height: int) -> list[Line]:
        """Return panes about the selected line: its operators, their shapes, the layers that run it."""
        line = self.file.lines[self.cursor.row]
        drawn: list[Line] = []
        for number, over in enumerate(_PARTS):
            high = (height - len(drawn)) // (len(_PARTS) - number)
            title = f"line {line.number} by {over}"
            if line.total is None:
                body = [fit(((" no work on the device", Role.DIM),), width - 2)] if number == 0 else []
            else:
                parts = self._parts.of(By.SOURCE, line.total.name, over)
                body = list(part_lines(parts, "", width - 2, high - 2))
            drawn += framed(title, body, (width, high), note=PARTS_NOTE if line.total else "")
        return drawn

    def _file_lines(self, width: int, height: int) -> list[Line]:
        boxed = is_boxed(width, height)
        layout = TableLayout(_SOURCE_COLUMNS, inner_width(width, boxed=boxed))
        room = height - chrome_lines(boxed=boxed) - 1
        if self._is_new:
            self._is_new = False
            times = [line.total.total_ns if line.total else -1 for line in self.file.lines]
            hottest = times.index(max(times))
            self.cursor.row, self.cursor.first = hottest, max(0, hottest - _ABOVE - room // 3)
        self._top = 2
        body = self.table(layout, room, self.file.lines, _cells)
        problem = f"not readable: {self.file.problem}, " if self.file.problem else ""
        note = f"{problem}{self._at + 1} of {len(self._files)} files, {self.file.share:.1%} of the time, modelled"
        foot = "↑↓ select  n next hot line  tab next file  ⏎ slowest in the timeline"
        title = _shortened(self.file.path, width - len(note.rpartition(", ")[2]) - _FRAME)
        return framed(title, body, (width, height), note=note, foot=foot, boxed=boxed)


def _shortened(path: str, width: int) -> str:
    """Return a path without its first folders where it is too long."""
    while width_of(path) > width and "/" in path.removeprefix("…/"):
        path = f"…/{path.removeprefix('…/').partition('/')[2]}"
    return path


def _cells(line: SourceLine) -> tuple[Span | tuple[Span, ...], ...]:
    total = line.total
    role = Role.PLAIN if total else Role.DIM
    numbers: tuple[Span | tuple[Span, ...], ...] = (("", role),) * 3
    if total:
        time = units.format_ns(total.total_ns), Role.VALUE
        numbers = time, (f"{100 * total.share:.1f}%", role), bar(total.share, _SOURCE_BAR)
    return (*numbers, (str(line.number), role), (line.text.expandtabs(4), role))
