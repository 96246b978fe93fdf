"""The selected row of a list."""

from __future__ import annotations


class Cursor:
    """A selected row, and the range of visible rows."""

    def __init__(self) -> None:
        self.row = 0
        self.first = 0

    def move(self, steps: int, count: int) -> None:
        """Move the selection, stopping at the ends."""
        self.row = max(0, min(self.row + steps, count - 1))

    def window(self, count: int, lines: int) -> range:
        """Return the rows in view, the selected one among them, scrolling no more than needed."""
        self.row = max(0, min(self.row, count - 1))
        first = min(self.first, self.row)
        first = max(first, self.row - max(1, lines) + 1)
        self.first = max(0, min(first, count - lines))
        return range(self.first, min(count, self.first + max(0, lines)))
