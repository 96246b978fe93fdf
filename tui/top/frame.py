"""Which lines each pane of the app shows: of the classic screen, of a page, and where the terminal is too small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.top.layout import MIN_HEIGHT, MIN_WIDTH
from neurontools.tui.top.page import filled
from neurontools.tui.top.page_bar import keys_bar, page_bar
from neurontools.tui.top.screen import panes
from neurontools.tui.widgets.lines import Role, fit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.page import Page
    from neurontools.tui.widgets.lines import Line

CLASSIC_PANES = ("cores", "cpu", "summary", "details")
"""The panes of the classic screen between title and bottom bar."""

Frame = dict[str, "Sequence[Line]"]
"""Lines by the id of their pane; what is not in it is empty."""

_CHROME_LINES = 3  # title, and the two lines of the bottom bar


def classic_frame(model: TopModel, width: int, height: int) -> Frame:
    """Return the classic screen."""
    drawn = panes(model, width, height)
    return {name: getattr(drawn, name) for name in ("title", *CLASSIC_PANES, "bottom")}


def page_frame(
    pages: Sequence[Page],
    page: Page,
    model: TopModel,
    title: Line,
    size: tuple[int, int],
    keys: Mapping[str, str],
) -> Frame:
    """Return a page.

    Args:
        pages: all of them, for the bottom bar.
        page: the one that is shown.
        model: what it shows.
        title: its first line.
        size: cells and lines.
        keys: what the user bound anew.
    """
    width, height = size
    room = height - _CHROME_LINES
    return {
        "title": (title,),
        f"page-{page.name}": filled(page.lines(model, width, room), width, room),
        "bottom": (page_bar(pages, page, width), keys_bar(page, keys, width)),
    }


def small_frame(width: int, height: int) -> Frame:
    """Return what a terminal shows in which nothing else has room."""
    text = (
        "neuron-top",
        f"needs {MIN_WIDTH}x{MIN_HEIGHT},",
        f"here are {width}x{height}",
        "(q: quit)",
    )
    lines = tuple(fit(((line.center(width), Role.PLAIN),), width) for line in text)
    above = max(0, (height - len(lines)) // 2)
    return {"title": (*((fit((), width),) * above), *lines)[:height]}
