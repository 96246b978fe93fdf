"""What a page of neuron-top is: it draws lines, has keys with names, and asks the app for what it can't do itself.

A page knows nothing of Textual, so that `--once` prints every page without it.
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

    `name` with the page's name before it is what the configuration calls it; `keys` are Textual's names, with commas
    between them; `hint` is for the bar at the bottom, "" to leave it out.
    """

    name: str
    keys: str
    text: str
    run: Callable[[TopModel], Request | None]
    hint: str = ""


class Page:
    """A page: everything between title and bottom bar."""

    name = ""
    title = ""

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return ()

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return what it shows, as many lines as there is room for or fewer."""
        raise NotImplementedError

    def wanted_lines(self, model: TopModel) -> int:
        """Return how many lines show everything."""
        raise NotImplementedError

    def all_lines(self, model: TopModel, width: int) -> Sequence[Line]:
        """Return everything it can tell, for a text of any length."""
        return self.lines(model, width, self.wanted_lines(model))

    def click(self, model: TopModel, x: int, y: int) -> Request | None:
        """Take a click on a cell of what was drawn last."""

    def scroll(self, model: TopModel, steps: int) -> None:
        """Take a turn of the mouse wheel."""

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return what it shows as JSON values: numbers in base units."""
        raise NotImplementedError


class Cursor:
    """A selected row among some, and which of them are in view."""

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
    """Return exactly so many lines: blank ones are added, those that are too many left out."""
    blank = fit((), width)
    return (*lines[:height], *(blank for _ in range(height - len(lines))))
