"""Pages of the viewer: lines in frames, drawn by the page for the size that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding
from textual.message import Message
from textual.widget import Widget

from neurontools.base import units
from neurontools.base.text import printable, short_operator
from neurontools.profiler.analysis.operators import slowest_event
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Role, fit, fixed, wrapped
from neurontools.tui.widgets.table_lines import Cell, Cursor, TableLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from neurontools.profiler.analysis.operators import By, GroupPart
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.lines import Line
    from neurontools.tui.widgets.requests import Prompt
    from neurontools.tui.widgets.theme import Theme


_WHEEL_ROWS = 3
CAPTURE = "neuron-run --profile prof -- python train.py"


def short_name(name: str) -> str:
    """Return the name of an operation, which a shape may follow, without what all names share."""
    operator, space, shape = name.partition(" ")
    return printable(f"{short_operator(operator)}{space}{shape}")


class ShowEvent(Message):
    """Show an event of the trace in the timeline."""

    def __init__(self, event: int) -> None:
        super().__init__()
        self.event = event


class PromptRequested(Message):
    """A page asks for a line of text; `on_answer` gets it, or None for Escape."""

    def __init__(self, prompt: Prompt, on_answer: Callable[[str | None], None] = lambda _: None) -> None:
        super().__init__()
        self.prompt = prompt
        self.on_answer = on_answer


class ProfilePage(Widget, can_focus=True):
    """A page of lines; computed when it is first shown."""

    DEFAULT_CSS = "ProfilePage { height: 1fr; width: 1fr; }"
    title = ""

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.look = look
        self._trace = trace

    def key_bindings(self) -> list[BindingType]:
        """Return the keys of the page."""
        bindings: list[BindingType] = []
        for kind in type(self).__mro__:
            if issubclass(kind, ProfilePage):
                bindings += [each for each in vars(kind).get("BINDINGS", ()) if each not in bindings]
        return bindings

    def compose(self) -> ComposeResult:
        """Make the pane."""
        yield LinePane(self.look.styles)

    @property
    def room(self) -> tuple[int, int]:
        """Cells and lines of the page."""
        return self.size.width, self.size.height

    def take_keys(self) -> None:
        """Let the page have the keys."""
        self.focus()

    def on_show(self) -> None:
        """Draw when the page comes into view."""
        self.draw()

    def on_resize(self) -> None:
        """Draw at the new size."""
        self.draw()

    def draw(self) -> None:
        """Draw the page, once it has a size."""
        width, height = self.room
        panes = self.query(LinePane)
        if width > 0 and height > 0 and self.display and panes:
            lines = list(self.lines(width, height))[:height]
            panes.first().show([fit(line, width) for line in lines])

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """Return the lines of the page, at most `height`."""
        raise NotImplementedError

    def no_data(self, reason: str, remedy: str = CAPTURE) -> list[Line]:
        """Return the page without data: why, and what to run."""
        width, height = self.size
        boxed = is_boxed(width, height)
        inner = inner_width(width, boxed=boxed)
        body: list[Line] = [fit((), inner)] if height > chrome_lines(boxed=boxed) + 2 else []
        for text, role in ((reason, Role.PLAIN), (remedy, Role.VALUE)):
            body += [fit(((f"  {piece}", role),), inner) for piece in wrapped(text, max(inner - 2, 1))]
        return framed(self.title, body, (width, height), boxed=boxed)


class ProfileListPage(ProfilePage):
    """A page with a list in a frame, one row of which is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "row above", key_display="↑/k", show=False),
        Binding("down,j", "move(1)", "row below", key_display="↓/j", show=False),
        Binding("pageup", "move(-10)", "ten rows up", show=False),
        Binding("pagedown", "move(10)", "ten rows down", show=False),
        Binding("home", "move(-1000000)", "first row", show=False),
        Binding("end", "move(1000000)", "last row", show=False),
    ]

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self.cursor = Cursor()
        self._top = 0

    @property
    def count(self) -> int:
        """Number of rows."""
        raise NotImplementedError

    def table(
        self,
        layout: TableLayout,
        room: int,
        items: Sequence[Any],
        cells_of: Callable[[Any], Sequence[Cell]] | None = None,
    ) -> list[Line]:
        """Return the head of a table and its rows in view, which have `room` lines.

        Args:
            layout: of the columns.
            room: number of lines.
            items: one a row.
            cells_of: returns the cells of an item, where the columns do not make them.
        """
        window = self.cursor.window(self.count, max(room, 0))
        rows = [
            layout.line(cells_of(items[row]), selected=row == self.cursor.row)
            if cells_of
            else layout.item(items[row], selected=row == self.cursor.row)
            for row in window
        ]
        return [layout.head(), *rows]

    def action_move(self, steps: int) -> None:
        """Select another row."""
        self.cursor.move(steps, self.count)
        self.draw()

    def action_open(self) -> None:
        """Open the selected row."""

    def on_click(self, event: events.Click) -> None:
        """Select the row at the pointer; a second click opens it."""
        y = event.screen_y - self.region.y
        number = self.cursor.first + y - self._top
        if not self._top <= y or not number < self.count:
            return
        if number == self.cursor.row:
            self.action_open()
        else:
            self.cursor.row = number
        self.draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move up."""
        event.stop()
        self.action_move(-_WHEEL_ROWS)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move down."""
        event.stop()
        self.action_move(_WHEEL_ROWS)


OPEN = Binding("enter", "open", "the slowest event of the row in the timeline", key_display="⏎", show=False)
"""For pages whose rows lead to an event."""


class ProfileGroupsPage(ProfileListPage):
    """A page with a list of groups: operators, layers, lines and others."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("g", "group", "next grouping", show=False), OPEN]
    groupings: tuple[By, ...]
    """The first one is shown at first."""

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self.by = self.groupings[0]

    def show_slowest(self, name: str) -> None:
        """Show the slowest event of a group in the timeline."""
        event = slowest_event(self._trace, self.by, name)
        if event is None:
            self.app.bell()
        else:
            self.post_message(ShowEvent(event))

    def action_group(self) -> None:
        """Use the next grouping."""
        self.by = self.groupings[(self.groupings.index(self.by) + 1) % len(self.groupings)]
        self.cursor.row = 0
        self.draw()


_PART_BAR = 12
_LEAST_FOR_BAR = 56
PARTS_NOTE = "share, time, events"


def part_lines(parts: Sequence[GroupPart], known: str, width: int, room: int) -> Iterator[Line]:
    """Yield a line for each part, at most as many as have room.

    Args:
        parts: those with most time first.
        known: what all names begin with and none shows: the operator before its shapes.
        width: cells of a line.
        room: number of lines.
    """
    total = sum(part.total_ns for part in parts) or 1
    cells = _PART_BAR if width >= _LEAST_FOR_BAR else 0
    name = width - cells - 27
    fitting = parts if len(parts) <= room else parts[: max(room - 1, 0)]
    for part in fitting:
        share = part.total_ns / total
        spans = (
            (f" {fixed(short_name(part.name.removeprefix(known)), name)} ", Role.PLAIN),
            *(bar(share, cells) if cells else ()),
            (f"{100 * share:6.1f}%", Role.PLAIN),
            (units.format_ns(part.total_ns).rjust(10), Role.VALUE),
            (f"{part.count:>6}", Role.DIM),
        )
        yield fit(spans, width)
    if len(fitting) < len(parts):
        yield fit(((f" and {len(parts) - len(fitting)} more", Role.DIM),), width)
