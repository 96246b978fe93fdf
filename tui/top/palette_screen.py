"""The command palette of neuron-top on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.command import CommandPalette
from textual.errors import NoWidget

if TYPE_CHECKING:
    from textual import events


class TopPalette(CommandPalette):
    """Textual's palette, but a click where the terminal was before it shrank does not end the program."""

    def on_click(self, event: events.Click) -> None:
        """Leave out a click on what is no longer there."""
        try:
            self.get_widget_at(int(event.screen_x), int(event.screen_y))
        except NoWidget:
            event.prevent_default()
