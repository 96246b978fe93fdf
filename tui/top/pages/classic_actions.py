"""What the keys and the mouse do on the classic page, for the app to inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.top.pages.memory import first_row
from neurontools.tui.top.pages.rows import tab_at
from neurontools.tui.top.screen import layout_for

if TYPE_CHECKING:
    from textual.geometry import Size

    from neurontools.tui.top.model import TopModel


class ClassicActions:
    """Actions on the model; `paint` shows what became of it."""

    model: TopModel

    def paint(self) -> None:
        """Show the model."""
        raise NotImplementedError

    def action_move(self, steps: int) -> None:
        """Move the selection in the tree."""
        self.model.tree.move(steps)
        self.paint()

    def action_toggle_row(self) -> None:
        """Open or close the selected row."""
        self.model.tree.toggle()
        self.paint()

    def action_expand(self) -> None:
        """Open the selected row."""
        self.model.tree.expand()
        self.paint()

    def action_collapse(self) -> None:
        """Close the selected row or go to its parent."""
        self.model.tree.collapse()
        self.paint()

    def action_toggle_all(self) -> None:
        """Open or close the whole tree."""
        self.model.tree.toggle_all()
        self.paint()

    def action_step_tab(self, steps: int) -> None:
        """Go to the previous or next tab."""
        self.model.step_tab(steps)
        self.paint()

    def action_tab(self, number: int) -> None:
        """Go to a tab by its number on the screen."""
        self.model.go_to_tab(number - 1)
        self.paint()

    def action_flops(self) -> None:
        """Switch between utilization and FLOPS."""
        self.model.toggle_flops()
        self.paint()

    def click_classic(self, x: int, y: int, size: Size) -> None:
        """Select the row or the tab under the mouse; a click on the selected row toggles it."""
        row = self._row_at(y, size)
        if row is not None:
            if row == self.model.tree.selected:
                self.model.tree.toggle()
            else:
                self.model.tree.select(row)
        elif y == size.height - 2:
            tab = tab_at(self.model, size.width, x)
            if tab is not None:
                self.model.go_to_tab(tab)

    def _row_at(self, y: int, size: Size) -> int | None:
        layout = layout_for(self.model, *size)
        top = size.height - 2 - layout.tree_lines
        if not top <= y < size.height - 2:
            return None
        index = first_row(self.model, layout.tree_lines) + y - top
        return index if index < len(self.model.tree.rows) else None
