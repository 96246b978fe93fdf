"""Full-screen texts over the cache browser: details of an entry, why it was compiled, locks, help."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult


class ReadScreen(ModalScreen[None]):
    """A text as large as the screen allows; arrows scroll, Escape, Enter and q close it.

    Args:
        title: over it.
        text: as it is, without markup.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "close", "close"),
        Binding("up,k", "scroll(-1)", "up"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("pageup,b", "scroll(-20)", "page up"),
        Binding("pagedown,space", "scroll(20)", "page down"),
        Binding("home", "scroll(-1000000)", "first line"),
        Binding("end", "scroll(1000000)", "last line"),
    ]
    DEFAULT_CSS = """
    ReadScreen { align: center middle; }
    ReadScreen > VerticalScroll { width: 100%; height: 100%; border: round $primary; padding: 0 1;
        background: $background; }
    ReadScreen Static { height: auto; width: 1fr; }
    """

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Make the text."""
        with VerticalScroll() as box:
            box.border_title = self._title
            yield Static(self._text, markup=False)

    def action_close(self) -> None:
        """Go back to the tree."""
        self.dismiss(None)

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
