"""The bar at the bottom of every page but the classic one: the pages, and the keys of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.top.names import shown_key
from neurontools.tui.widgets.lines import Line, Role, Span, fit, width_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.tui.top.page import Page

_HEAD = " Pages  "


def page_bar(pages: Sequence[Page], current: Page, width: int) -> Line:
    """Return the names of the pages, the current one between `>` and `<`; where they do not fit, its name alone."""
    spans: list[Span] = [(_HEAD, Role.BAR_DIM)]
    for page, text in zip(pages, _tabs(pages, current, width), strict=True):
        if page is current:
            spans += [(">", Role.BAR), (text, Role.BAR_CURRENT), ("<", Role.BAR)]
        else:
            spans.append((f" {text} ", Role.BAR))
    return fit(spans, width, Role.BAR)


def page_at(pages: Sequence[Page], current: Page, width: int, x: int) -> Page | None:
    """Return the page whose name is drawn at a column, None where there is none."""
    left = len(_HEAD)
    for page, text in zip(pages, _tabs(pages, current, width), strict=True):
        right = left + width_of(text) + 2
        if left <= x < right:
            return page
        left = right
    return None


def keys_bar(page: Page, keys: Mapping[str, str], width: int) -> Line:
    """Return the keys that matter most, as many as fit; all of them are on the help screen.

    Args:
        page: whose keys.
        keys: what the user bound anew, by name.
        width: cells in the line.
    """
    hints = [(keys.get("quit", "q"), "quit"), (keys.get("help", "question_mark"), "help")]
    hints += [
        (keys.get(f"{page.name}.{key.name}", key.keys), key.hint) for key in page.bindings() if key.hint
    ]
    spans: list[Span] = []
    left = width
    for names, text in hints:
        key = shown_key(names.partition(",")[0])
        left -= width_of(key) + width_of(text) + 4
        if left < 0:
            break
        spans += [(f" {key}: ", Role.BAR), (f"{text} ", Role.BAR_DIM)]
    return fit(spans, width, Role.BAR)


def _tabs(pages: Sequence[Page], current: Page, width: int) -> list[str]:
    names = [f"F{number}:{page.title}" for number, page in enumerate(pages, 1)]
    if len(_HEAD) + sum(width_of(name) + 2 for name in names) <= width:
        return names
    return [
        name if page is current else name.partition(":")[0] for page, name in zip(pages, names, strict=True)
    ]
