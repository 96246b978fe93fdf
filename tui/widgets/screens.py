"""Screens over an app: a line of text to type, a choice, a box of text, and help generated from key bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.containers import Vertical, VerticalScroll
from textual.errors import NoWidget
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from neurontools.base.text import printable_lines
from neurontools.tui.names import shown_key
from neurontools.tui.widgets.frames import edge, framed, row
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Line, Role, dotted, fit, fixed, width_of

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from neurontools.tui.widgets.requests import Choose, Prompt
    from neurontools.tui.widgets.theme import Theme


_BOX_WIDTH = 58


class PromptScreen(ModalScreen[str | None]):
    """A line at the bottom of the screen; the input takes effect while it is typed, and is the result of Enter.

    Args:
        prompt: the request.
        theme: the colours.
        on_change: called after each change.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "cancel", "cancel")]
    AUTO_FOCUS = "Input"
    CSS = """
    PromptScreen { background: transparent; align: left bottom; }
    #prompt-box { height: 2; dock: bottom; }
    #prompt-text { height: 1; border: none; padding: 0 1; }
    """

    def __init__(self, prompt: Prompt, theme: Theme, on_change: Callable[[], None]) -> None:
        super().__init__()
        self._prompt = prompt
        self._look = theme
        self._on_change = on_change

    def compose(self) -> ComposeResult:
        """Make the title and the line."""
        with Vertical(id="prompt-box"):
            yield LinePane(self._look.styles, id="prompt-title")
            yield Input(self._prompt.text, id="prompt-text", select_on_focus=False)

    def on_mount(self) -> None:
        """Show the title."""
        self._show("")

    def on_resize(self) -> None:
        """Show the title over the new width."""
        self._show("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the input."""
        self._show(self._prompt.on_change(event.value))
        self._on_change()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the input."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Discard the input."""
        self._prompt.on_change("")
        self._on_change()
        self.dismiss(None)

    def _show(self, problem: str) -> None:
        width = self.app.size.width
        line = edge(self._prompt.title, width, boxed=False)
        if problem:
            line = dotted(((f" {problem} ", Role.BADGE_BAD),), width)
        self.query_one("#prompt-title", LinePane).show((line,))


class ChooseScreen(ModalScreen[int | None]):
    """A box with options; closing it chooses none.

    Args:
        choose: the request.
        theme: the colours.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,n", "choose(False)", "nothing"),
        ("enter,y", "choose(True)", "choose"),
        ("up", "move(-1)", "up"),
        ("down", "move(1)", "down"),
    ]
    CSS = """
    ChooseScreen { align: center middle; background: $background 60%; }
    #choose-box { width: 58; height: auto; }
    """

    def __init__(self, choose: Choose, theme: Theme) -> None:
        super().__init__()
        self._choose = choose
        self._look = theme
        self._at = 0
        self._above = 0

    def compose(self) -> ComposeResult:
        """Make the box."""
        with Vertical(id="choose-box"):
            yield LinePane(self._look.styles, id="choose")

    def on_mount(self) -> None:
        """Fill it."""
        self._show()

    def action_move(self, steps: int) -> None:
        """Go to another option."""
        self._at = (self._at + steps) % len(self._choose.options)
        self._show()

    def on_click(self, event: events.Click) -> None:
        """Select the option under the mouse, choose it on a second click; a click outside the box chooses none."""
        event.stop()  # the page below must not take it, now that nothing lies over it
        if not self.is_current:  # the one before has answered it
            return
        box = self.query_one("#choose", LinePane).region
        if not box.contains(event.screen_x, event.screen_y):
            self.dismiss(None)
            return
        option = event.screen_y - box.y - self._above
        if option == self._at:
            self.dismiss(option)
        elif 0 <= option < len(self._choose.options):
            self.action_move(option - self._at)

    def on_mouse_scroll_down(self) -> None:
        """Go to the next option."""
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        """Go to the previous option."""
        self.action_move(-1)

    def action_choose(self, chosen: bool) -> None:
        """Close with the option, or with none."""
        self.dismiss(self._at if chosen else None)

    def _show(self) -> None:
        inner = _BOX_WIDTH - 2
        lines: list[Line] = [dotted(((f" {text}", Role.PLAIN),), inner) for text in self._choose.lines]
        lines.append(fit((), inner))
        self._above = len(lines) + 1
        for number, option in enumerate(self._choose.options):
            current = number == self._at
            spans = ((f"{'>' if current else ' '} {option}", Role.STRONG if current else Role.PLAIN),)
            lines.append(row(spans, inner, selected=current))
        lines.append(fit(((" up/down: select, enter or y: confirm, escape: cancel", Role.DIM),), inner))
        size = (_BOX_WIDTH, len(lines) + 2)
        self.query_one("#choose", LinePane).show(framed(self._choose.title, lines, size))


class TextScreen(ModalScreen[None]):
    """A box of text, or with `whole` a text as large as the screen; arrows scroll, Escape, Enter and q close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss(None)", "close"),
        Binding("up,k", "scroll(-1)", "up"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("pageup,b", "scroll(-20)", "page up"),
        Binding("pagedown,space", "scroll(20)", "page down"),
        Binding("home", "scroll(-1000000)", "first line"),
        Binding("end", "scroll(1000000)", "last line"),
    ]
    AUTO_FOCUS = None
    DEFAULT_CSS = """
    TextScreen { align: center middle; }
    TextScreen.-whole > VerticalScroll { width: 100%; height: 100%; max-height: 100%; background: $background; }
    TextScreen > VerticalScroll { width: 76; max-width: 100%; height: auto; max-height: 90%; border: round $primary;
        padding: 0 1; background: $surface; }
    TextScreen Static { height: auto; width: 1fr; }
    """

    def __init__(self, title: str, text: str, *, whole: bool = False) -> None:
        super().__init__(classes="-whole" if whole else None)
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Make the box."""
        with VerticalScroll() as box:
            box.border_title = self._title
            yield Static(printable_lines(self._text), markup=False)

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


class Palette(CommandPalette):
    """Textual's palette, but robust against clicks outside a terminal that has shrunk."""

    def on_click(self, event: events.Click) -> None:
        """Ignore a click outside the screen."""
        try:
            self.get_widget_at(int(event.screen_x), int(event.screen_y))
        except NoWidget:
            event.prevent_default()


_KEYS_WIDTH = 18
_COLUMN_WIDTH = 38
_MOST_COLUMNS = 3
_WIDE_COLUMN = 72

HelpRows = Sequence[tuple[str, str]]
"""Keys and what they do."""


def key_rows(
    bindings: Iterable[BindingType], describe: Callable[[Binding], tuple[str, str]] | None = None
) -> HelpRows:
    """Return keys and what they do; bindings that do the same are one row.

    Args:
        bindings: those without a description are left out.
        describe: returns text and key of a binding; None for the binding's own.
    """
    merged: dict[str, dict[str, None]] = {}
    for binding in bindings:
        if isinstance(binding, Binding) and binding.description:
            text, keys = describe(binding) if describe else (binding.description, binding.key)
            merged.setdefault(text, {}).update(dict.fromkeys(map(shown_key, keys.split(","))))
    return [(_together(list(keys)), text) for text, keys in merged.items()]


def help_lines(
    groups: Iterable[tuple[str, HelpRows]], notes: Iterable[str], width: int, columns: int
) -> tuple[Line, ...]:
    """Return the lines of the help: each group under its title, then notes.

    Args:
        groups: titles and rows.
        notes: sentences.
        width: cells in a line.
        columns: rows beside each other.
    """
    lines: list[Line] = []
    for title, rows in groups:
        lines += [edge(title, width, boxed=False), *_columns(rows, width, columns)]
    return (*lines, *(fit(((f" {note}", Role.DIM),), width) for note in notes))


def _together(keys: Sequence[str]) -> str:
    if len(keys) > 3 and all(key.isdigit() for key in keys):
        return f"{min(keys)}-{max(keys)}"
    return " ".join(keys)


def _columns(rows: HelpRows, width: int, columns: int) -> list[Line]:
    room = min(_KEYS_WIDTH, max((width_of(keys) for keys, _ in rows), default=0) + 3)
    high = -(-len(rows) // columns)
    lines = []
    for line in range(high):
        spans = []
        for keys, text in rows[line::high]:
            spans += [
                (fixed(f"  {keys}", room), Role.FRAME_KEY),
                (fixed(text, width // columns - room - 1) + " ", Role.PLAIN),
            ]
        lines.append(fit(spans, width))
    return lines


class HelpScreen(ModalScreen[None]):
    """The keys, over the program; any usual key closes it, arrows scroll.

    Args:
        theme: the colours.
        groups: as `help_lines` takes them.
        notes: below the groups.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,question_mark,enter,space", "app.pop_screen", "close"),
        ("up", "move(-1)", "up"),
        ("down", "move(1)", "down"),
        ("pageup", "move(-10)", "page up"),
        ("pagedown", "move(10)", "page down"),
    ]
    CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    #help-box { width: auto; height: auto; }
    """

    def __init__(
        self, theme: Theme, groups: Sequence[tuple[str, HelpRows]], notes: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._look = theme
        self._text = groups, notes
        self._first = 0

    def compose(self) -> ComposeResult:
        """Make the box."""
        with Vertical(id="help-box"):
            yield LinePane(self._look.styles, id="help")

    def on_mount(self) -> None:
        """Fill it."""
        self._show()

    def on_resize(self) -> None:
        """Fill it for another size."""
        self._show()

    def on_click(self, event: events.Click) -> None:
        """Close, and keep the click from the page below."""
        event.stop()
        if self.is_current:  # two clicks may come at once
            self.dismiss()

    def on_mouse_scroll_down(self) -> None:
        """Scroll down."""
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        """Scroll up."""
        self.action_move(-1)

    def action_move(self, steps: int) -> None:
        """Scroll."""
        self._first += steps
        self._show()

    def _show(self) -> None:
        across, down = self.app.size
        room = max(1, down - 2)
        # As few columns as have room, for their texts to be whole.
        for columns in range(1, max(1, min(_MOST_COLUMNS, (across - 2) // _COLUMN_WIDTH)) + 1):
            inner = max(1, min(across - 2, columns * _WIDE_COLUMN))
            lines = help_lines(*self._text, inner, columns)
            if len(lines) <= room:
                break
        self._first = max(0, min(self._first, len(lines) - room))
        shown = list(lines[self._first : self._first + room])
        note = "↓ more" if self._first + room < len(lines) else "escape: close"
        self.query_one("#help-box").styles.width = inner + 2
        size = (inner + 2, len(shown) + 2)
        self.query_one("#help", LinePane).show(framed("Help", shown, size, note=note))
