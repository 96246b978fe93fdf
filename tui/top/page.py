"""The base of a page of neuron-top: it draws lines, has named keys, and makes requests to the app.

Pages are independent of Textual, so that `--once` prints them without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from neurontools.tui.widgets.lines import fit
from neurontools.tui.widgets.table_lines import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.pages.columns import Column
    from neurontools.tui.widgets.lines import Line
    from neurontools.tui.widgets.requests import Request

_ALL_ROWS = 1_000_000


class PageKey(NamedTuple):
    """A key of a page.

    `name` after the page's name is its name in the configuration; `keys` are Textual's names, separated by
    commas; `hint` is the text in the bottom bar, "" for none.
    """

    name: str
    keys: str
    text: str
    run: Callable[[TopModel], Request | None]
    hint: str = ""


class PageOptions(NamedTuple):
    """What the user chose: the columns of the process table, none for the default, its filter, and to send no signals."""

    columns: Sequence[Column] = ()
    readonly: bool = False
    process_filter: str = ""


class Page:
    """A page: the area between title and bottom bar.

    Page `events` is the class `EventsPage` of `pages/events.py`. Its name is in the configuration, and the names of its
    keys begin with it; its letter and its function key lead to it.
    """

    name: ClassVar[str]
    letter: ClassVar[str]
    state = ""
    """Text on the right of the first line; "" for the machine."""

    @classmethod
    def make(cls, options: PageOptions) -> Page:  # noqa: ARG003  most pages have no options
        """Return a new page."""
        return cls()

    @property
    def title(self) -> str:
        """Its name in the line of tabs."""
        return self.name.capitalize()

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return ()

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return its lines, at most `height`."""
        raise NotImplementedError

    def live_lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return its lines in the live view."""
        return self.lines(model, width, height)

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


class Pages(Sequence[Page]):
    """Pages in their order. Each is made, and its modules are loaded, when it is first asked for.

    Args:
        makers: make the pages, by their names.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Page]]) -> None:
        self._makers = makers
        self._made: dict[str, Page] = {}
        self.names = tuple(makers)
        self.titles = tuple(name.capitalize() for name in makers)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.names)

    def __getitem__(self, position: int) -> Page:  # type: ignore[override]  # no slices
        """Return a page by its position."""
        return self.named(self.names[position])

    def index(self, value: Page, *_: object) -> int:
        """Return the position of a page."""
        return self.names.index(value.name)

    def named(self, name: str) -> Page:
        """Return a page by its name."""
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]


class ListPage(Page):
    """A page with a list of rows, one of which is selected."""

    def __init__(self) -> None:
        self._cursor = Cursor()
        self._top = 1
        """The line of the page with the first visible row."""

    def scroll(self, model: TopModel, steps: int) -> None:
        """Move the selection."""
        self._move(model, steps)

    def _move(self, model: TopModel, steps: int) -> None:
        """Move the selection, stopping at the ends."""
        raise NotImplementedError

    def _row_at(self, y: int, count: int) -> int | None:
        """Return the row at a line of the page, or None."""
        row = self._cursor.first + y - self._top
        return row if y >= self._top and row < count else None

    def _list_keys(
        self, select: str, ten: str, first: str, last: str, hint: str = "select"
    ) -> tuple[PageKey, ...]:
        """Return the keys that move the selection.

        Args:
            select: what up and down do.
            ten: ten rows, by what they are.
            first: the first row.
            last: the last row.
            hint: in the bottom bar, "" for none.
        """

        def key(name: str, keys: str, text: str, steps: int, hint: str = "") -> PageKey:
            return PageKey(name, keys, text, lambda model: self._move(model, steps), hint)

        return (
            key("up", "up,k", select, -1),
            key("down", "j,down", select, 1, hint),
            key("page-up", "pageup", f"{ten} up", -10),
            key("page-down", "pagedown", f"{ten} down", 10),
            key("first", "home", first, -_ALL_ROWS),
            key("last", "end", last, _ALL_ROWS),
        )


def switch(owner: object, flag: str) -> Callable[[TopModel], None]:
    """Return a function for a key that turns a flag of an object on and off."""
    return lambda _model: setattr(owner, flag, not getattr(owner, flag))


def filled(lines: Sequence[Line], width: int, height: int) -> tuple[Line, ...]:
    """Return exactly `height` lines: cut, or padded with blank lines."""
    blank = fit((), width)
    return (*lines[:height], *(blank for _ in range(height - len(lines))))
