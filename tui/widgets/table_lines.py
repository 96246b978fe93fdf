"""Tables as lines: columns of a fixed width, a wide one, optional ones for wide terminals; and the selected row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from neurontools.tui.widgets.frames import row
from neurontools.tui.widgets.lines import Line, Role, Span, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


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


_GAP = 2
_LEAST_TEXT = 26
_KEY = {True: "▾", False: ""}

Cell = Span | tuple[Span, ...]
"""A text with its role, or several that are as wide as the column."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Args:
        head: its title.
        width: cells; 0 for the column with the remaining cells.
        right: whether cells stand on the right.
        rank: columns with the highest rank vanish first; 0 never does.
        least: cells that the column with the remaining cells should have; others vanish for it.
        cell: returns the cell of an item, for `TableLayout.item`.
        order: returns the value by which items are sorted, None for a column that does not sort.
    """

    head: str
    width: int = 0
    right: bool = True
    rank: int = 0
    least: int = _LEAST_TEXT
    cell: Callable[[Any], Cell] = lambda _: ("", Role.PLAIN)
    order: Callable[[Any], Any] | None = None


class TableLayout:
    """The columns that fit into a width."""

    def __init__(self, columns: Sequence[TableColumn], width: int) -> None:
        self._width = width
        shown = list(range(len(columns)))
        needed = {number: column.width or column.least for number, column in enumerate(columns)}
        while sum(needed[number] + _GAP for number in shown) + 1 > width and any(
            columns[number].rank for number in shown
        ):
            shown.remove(max(shown, key=lambda number: (columns[number].rank, number)))
        self._columns = columns
        self._shown = [(number, columns[number]) for number in shown]
        fixed_cells = sum(column.width + _GAP for _, column in self._shown if column.width)
        self._rest = max(width - fixed_cells - _GAP - 1, 1)

    def head(self, sorted_by: int = -1) -> Line:
        """Return the line of titles; `sorted_by` is the column that orders the rows."""
        spans: list[Span] = []
        for number, column in self._shown:
            title = column.head + _KEY[number == sorted_by]
            spans.append((self._cell(title, column), Role.VALUE if number == sorted_by else Role.HEAD))
        return row(spans, self._width)

    def item(self, item: object, *, selected: bool = False) -> Line:
        """Return the row of an item; its cells are those that the columns make."""
        return self.line([column.cell(item) for column in self._columns], selected=selected)

    def line(self, cells: Sequence[Cell], *, selected: bool = False) -> Line:
        """Return a row."""
        spans: list[Span] = []
        for number, column in self._shown:
            cell = cells[number]
            if cell and isinstance(cell[0], tuple):
                spans += _padded(cell, self.width_of(number))
                spans.append((" " * _GAP, Role.PLAIN))
            else:
                text, role = cast("Span", cell)
                spans.append((self._cell(text, column), role))
        return row(spans, self._width, selected=selected)

    def width_of(self, number: int) -> int:
        """Return the cells of a column, 0 if it is not shown."""
        return next((column.width or self._rest for at, column in self._shown if at == number), 0)

    def column_at(self, x: int) -> int | None:
        """Return the number of the column at a cell of a line."""
        left = 1
        for number, column in self._shown:
            left += (column.width or self._rest) + _GAP
            if x < left:
                return number
        return None

    def _cell(self, text: str, column: TableColumn) -> str:
        width = column.width or self._rest
        if column.right and width_of(text) <= width:
            text = " " * (width - width_of(text)) + text
        return fixed(text, width) + " " * _GAP


def _padded(spans: Iterable[Span], width: int) -> list[Span]:
    found = list(spans)
    used = sum(width_of(text) for text, _ in found)
    return [*found, (" " * max(0, width - used), Role.PLAIN)]
