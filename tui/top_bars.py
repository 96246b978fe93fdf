"""The bar at the bottom of every page but the classic one: the pages, and the keys of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.lines import Line, Role, Span, fit, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.tui.top_page import Page

_HEAD = " Pages  "


def page_bar(pages: Sequence[Page], current: Page, width: int) -> Line:
    """Return the names of the pages, the current one between `>` and `<`."""
    spans: list[Span] = [(_HEAD, Role.BAR_DIM)]
    for number, page in enumerate(pages, 1):
        text = _tab(number, page)
        if page is current:
            spans += [(">", Role.BAR), (text, Role.BAR_CURRENT), ("<", Role.BAR)]
        else:
            spans.append((f" {text} ", Role.BAR))
    return fit(spans, width, Role.BAR)


def page_at(pages: Sequence[Page], x: int) -> Page | None:
    """Return the page whose name is drawn at a column, None where there is none."""
    left = len(_HEAD)
    for number, page in enumerate(pages, 1):
        right = left + width_of(_tab(number, page)) + 2
        if left <= x < right:
            return page
        left = right
    return None


def keys_bar(page: Page, width: int) -> Line:
    """Return the keys that matter most, as many as fit; what needs most room is the help screen's."""
    hints = ["q: quit", "?: help", *(key.hint for key in page.bindings() if key.hint)]
    spans: list[Span] = []
    left = width
    for hint in hints:
        left -= width_of(hint) + 2
        if left < 0:
            break
        key, _, text = hint.partition(": ")
        spans += [(f" {key}: ", Role.BAR), (f"{text} ", Role.BAR_DIM)]
    return fit(spans, width, Role.BAR)


def _tab(number: int, page: Page) -> str:
    return f"F{number}:{page.title}"
