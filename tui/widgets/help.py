"""The help screen of the full-screen programs, generated from their key bindings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from neurontools.tui.names import shown_key
from neurontools.tui.widgets.frames import edge, framed
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Line, Role, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from neurontools.tui.widgets.theme import Theme

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
