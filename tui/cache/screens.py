"""Full-screen texts over the cache browser: details of an entry, why it was compiled, locks, help."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import VerticalScroll

from neurontools.tui.profile.screens import TextScreen

if TYPE_CHECKING:
    from textual.binding import BindingType


class ReadScreen(TextScreen):
    """A text as large as the screen allows; arrows scroll, Escape, Enter and q close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll(-1)", "up"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("pageup,b", "scroll(-20)", "page up"),
        Binding("pagedown,space", "scroll(20)", "page down"),
        Binding("home", "scroll(-1000000)", "first line"),
        Binding("end", "scroll(1000000)", "last line"),
    ]
    DEFAULT_CSS = """
    ReadScreen > VerticalScroll { width: 100%; height: 100%; max-height: 100%; background: $background; }
    """

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
