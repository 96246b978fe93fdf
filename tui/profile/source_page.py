"""The page of the program's files: modelled time of each line."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding

from neurontools.base import units
from neurontools.profiler.analysis.operators import By, GroupParts, slowest_event
from neurontools.profiler.analysis.tree import source_files
from neurontools.tui.profile.page import OPEN, PARTS_NOTE, ProfileListPage, ShowEvent, part_lines
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Role, fit, width_of
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from textual.binding import BindingType

    from neurontools.profiler.analysis.tree import SourceFile, SourceLine
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.lines import Line, Span
    from neurontools.tui.widgets.theme import Theme

_BAR = 12
_COLUMNS = (
    TableColumn("time", 10),
    TableColumn("share", 6),
    TableColumn("", _BAR, right=False, rank=1),
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
        layout = TableLayout(_COLUMNS, inner_width(width, boxed=boxed))
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
        numbers = time, (f"{100 * total.share:.1f}%", role), bar(total.share, _BAR)
    return (*numbers, (str(line.number), role), (line.text.expandtabs(4), role))
