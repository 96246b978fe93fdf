"""The base of a page of neuron-top: it draws lines, has named keys, and makes requests to the app.

Pages are independent of Textual, so that `--once` prints them without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.tui.widgets.lines import fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.widgets.lines import Line
    from neurontools.tui.widgets.requests import Request


@dataclass(frozen=True, slots=True)
class PageKey:
    """A key of a page.

    `name` after the page's name is its name in the configuration; `keys` are Textual's names, separated by
    commas; `hint` is the text in the bottom bar, "" for none.
    """

    name: str
    keys: str
    text: str
    run: Callable[[TopModel], Request | None]
    hint: str = ""


class Page:
    """A page: the area between title and bottom bar."""

    name = ""
    title = ""

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return ()

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return its lines, at most `height`."""
        raise NotImplementedError

    def wanted_lines(self, model: TopModel) -> int:
        """Return the number of lines that show everything."""
        raise NotImplementedError

    def all_lines(self, model: TopModel, width: int) -> Sequence[Line]:
        """Return all its lines, for text output."""
        return self.lines(model, width, self.wanted_lines(model))

    def click(self, model: TopModel, x: int, y: int) -> Request | None:
        """Handle a click on a cell."""

    def scroll(self, model: TopModel, steps: int) -> None:
        """Handle the mouse wheel."""

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return its data as JSON values, numbers in base units."""
        raise NotImplementedError


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


def filled(lines: Sequence[Line], width: int, height: int) -> tuple[Line, ...]:
    """Return exactly `height` lines: cut, or padded with blank lines."""
    blank = fit((), width)
    return (*lines[:height], *(blank for _ in range(height - len(lines))))
