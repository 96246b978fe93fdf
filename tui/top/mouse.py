"""What the mouse does in neuron-top, for the app to inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import Size

from neurontools.tui.top.layout import too_small
from neurontools.tui.top.machines.actions import MachineActions
from neurontools.tui.top.page_bar import page_at
from neurontools.tui.top.pages.classic_actions import ClassicActions

if TYPE_CHECKING:
    from textual import events


class MouseActions(ClassicActions, MachineActions):
    """Clicks and turns of the wheel."""

    def on_click(self, event: events.Click) -> None:
        """Let the page know, or turn to another one."""
        if len(self.screen_stack) > 1 or too_small(*self.size):
            return
        x, (width, height) = event.screen_x, self.size
        strip = len(self.strip(width, height))
        y = event.screen_y - strip  # as if the names of several machines were not there
        if strip and y == 0:
            self.click_strip(x)
        elif self.is_classic:
            self.click_classic(x, y, Size(width, height - strip))
        elif event.screen_y == height - 2:
            self.turn_to(page_at(self.pages, self.page, width, x) or self.page)
        elif 1 <= y < height - strip - 2:
            self.carry_out(self.page.click(self.model, x, y - 1))
        self.paint()

    def on_mouse_scroll_down(self) -> None:
        """Move the selection down."""
        self._scroll(1)

    def on_mouse_scroll_up(self) -> None:
        """Move the selection up."""
        self._scroll(-1)

    def _scroll(self, steps: int) -> None:
        if len(self.screen_stack) > 1 or too_small(*self.size):
            return
        if self.is_classic:
            self.model.tree.move(steps)
        else:
            self.page.scroll(self.model, steps)
        self.paint()
