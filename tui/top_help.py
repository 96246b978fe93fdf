"""The help screen of neuron-top."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.screen import ModalScreen

from neurontools.tui.line_pane import LinePane
from neurontools.tui.lines import Line, Role, fit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.style import Style
    from textual.app import ComposeResult
    from textual.binding import BindingType

WIDTH = 56
_TEXT: tuple[tuple[str, str], ...] = (
    ("up down", "select a row of the memory tree"),
    ("left right", "collapse / expand the row"),
    ("enter", "expand or collapse the row"),
    ("x", "expand or collapse the entire tree"),
    ("1-9  a  d", "tab by number, previous, next"),
    ("f", "FLOPS instead of utilization"),
    ("mouse", "select; click again to expand; wheel"),
    ("ctrl+s", "save the screen as SVG"),
    ("ctrl+z", "back to the shell for a while (fg)"),
    ("q", "quit"),
)
_NOTES = (
    "Utilization is the share of wall time in which a core",
    "was executing. FLOPS come from the cost model of the",
    "models that ran. Bars marked blue: the selected cores.",
)


def help_lines() -> tuple[Line, ...]:
    """Return the text of the help screen."""
    blank = fit((), WIDTH)
    keys = (fit(((f"  {key:<12}", Role.STRONG), (text, Role.PLAIN)), WIDTH) for key, text in _TEXT)
    notes = (fit(((f"  {text}", Role.DIM),), WIDTH) for text in _NOTES)
    title = fit(((" neuron-top keys", Role.SECTION),), WIDTH, Role.SECTION)
    return (title, *keys, blank, *notes)


class HelpScreen(ModalScreen[None]):
    """The keys, over the dashboard; any of the usual keys closes it.

    Args:
        styles_by_role: the look of every role.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,question_mark,enter,space", "app.pop_screen", "close")
    ]
    CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    #help-box { width: 56; height: 15; }
    """

    def __init__(self, styles_by_role: Mapping[Role, Style]) -> None:
        super().__init__()
        self._styles_by_role = styles_by_role

    def compose(self) -> ComposeResult:
        """Make the box."""
        with Vertical(id="help-box"):
            yield LinePane(self._styles_by_role, id="help")

    def on_mount(self) -> None:
        """Fill it."""
        self.query_one("#help", LinePane).show(help_lines())
