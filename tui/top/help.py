"""The help screen of neuron-top, generated from the active key bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.screen import ModalScreen

from neurontools.tui.names import shown_key
from neurontools.tui.widgets.frames import edge, framed
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Line, Role, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import Binding, BindingType

    from neurontools.tui.widgets.theme import Theme

_KEYS_WIDTH = 18
_COLUMN_WIDTH = 38
_NOTES = (
    "Utilization: share of wall time in which a core executed.",
    "FLOPS: from the cost model of the executed models.",
    "Click to select, click again to open; the wheel scrolls.",
    "~ and 'modelled': values of a scenario's processes.",
)
_ANYWHERE = ""
_MOST_COLUMNS = 3
_WIDE_COLUMN = 54


def help_lines(bindings: Iterable[Binding], page: str, width: int) -> tuple[Line, ...]:
    """Return the keys of a page, and those of every page.

    Args:
        bindings: the active ones; only named bindings are listed.
        page: the page's name.
        width: cells in a line; two columns where they fit.
    """
    rows = _rows(bindings)
    lines: list[Line] = []
    for owner, title in ((page, f"Keys of this page: {page}"), (_ANYWHERE, "Keys on every page")):
        lines.append(edge(title, width, boxed=False))
        lines += _columns([(keys, text) for name, keys, text in rows if name == owner], width)
    return (*lines, *(fit(((f" {note}", Role.DIM),), width) for note in _NOTES))


def _rows(bindings: Iterable[Binding]) -> list[tuple[str, str, str]]:
    """Return owner, keys and text; bindings with the same text are merged."""
    merged: dict[tuple[str, str], list[str]] = {}
    for binding in bindings:
        if binding.id:
            owner = binding.id.partition(".")[0] if "." in binding.id else _ANYWHERE
            text, name = _describe(binding)
            keys = merged.setdefault((owner, text), [])
            if name not in keys:
                keys.append(name)
    return [(owner, _together(keys), text) for (owner, text), keys in merged.items()]


def _describe(binding: Binding) -> tuple[str, str]:
    """Return the text and key of a binding; similar bindings get the same text."""
    if ".tab-" in (binding.id or ""):
        return "tab by its number", binding.key
    if ".sort-" in (binding.id or "") and binding.key.isupper():
        return "sort by that column; again: reverse", "letter in head"
    return binding.description, shown_key(binding.key)


def _together(keys: Sequence[str]) -> str:
    if len(keys) > 3 and all(key.isdigit() for key in keys):
        return f"{min(keys)}-{max(keys)}"
    return " ".join(keys)


def _columns(rows: Sequence[tuple[str, str]], width: int) -> list[Line]:
    columns = max(1, width // _COLUMN_WIDTH)
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
    """The keys, over the dashboard; any usual key closes it, arrows scroll.

    Args:
        theme: the colours.
        lines_for: returns the text for a width.
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

    def __init__(self, theme: Theme, lines_for: Callable[[int], tuple[Line, ...]]) -> None:
        super().__init__()
        self._look = theme
        self._lines_for = lines_for
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
        columns = max(1, min(_MOST_COLUMNS, (across - 2) // _COLUMN_WIDTH))
        inner = max(1, min(across - 2, columns * _WIDE_COLUMN))
        lines = self._lines_for(inner)
        room = max(1, down - 2)
        self._first = max(0, min(self._first, len(lines) - room))
        shown = list(lines[self._first : self._first + room])
        note = "↓ more" if self._first + room < len(lines) else "escape: close"
        self.query_one("#help-box").styles.width = inner + 2
        size = (inner + 2, len(shown) + 2)
        self.query_one("#help", LinePane).show(framed("Help", shown, size, note=note))
