"""The screens of neuron-top as lines: the classic panes at a size, pages with their bars, plain text."""

from __future__ import annotations

from functools import lru_cache
from operator import is_
from typing import TYPE_CHECKING

from neurontools.base.text import plural, printable
from neurontools.tui.names import shown_key
from neurontools.tui.top.layout import (
    FLOPS_WIDTHS,
    MIN_HEIGHT,
    MIN_WIDTH,
    PERCENT_WIDTHS,
    ScreenLayout,
    screen_layout,
    too_small,
)
from neurontools.tui.top.page import filled
from neurontools.tui.top.pages.memory import detail_lines, summary_lines
from neurontools.tui.top.pages.rows import (
    bottom_lines,
    core_lines,
    cpu_lines,
    title_line,
)
from neurontools.tui.widgets.chrome import head_line, keys_line, pages_line, small_screen
from neurontools.tui.widgets.lines import Line, Role, fit, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.page import Page, Pages
    from neurontools.tui.widgets.chrome import ChromeLine

Frame = dict[str, "Sequence[Line]"]
"""Lines by the id of their pane; other panes are empty."""

_Drawn = tuple[ScreenLayout, tuple[tuple[Line, ...], tuple[Line, ...], tuple[Line, ...], tuple[Line, ...]]]

_LONG_STATE = 110
_OVERVIEW_HINTS = (
    ("j/k", "select"),
    ("⏎", "open"),
    ("x", "open all"),
    ("a/d", "previous/next process"),
    ("f", "FLOPS"),
    ("c", "classic screen"),
    ("^t", "theme"),
    ("^s", "save"),
    ("space", "pause"),
    ("[ ]", "back/forward"),
)

CLASSIC_PANES = ("cores", "cpu", "summary", "details")
"""The panes of the classic screen between title and bottom bar."""

TITLE = "neuron-top"

_last: list[tuple[tuple[object, ...], tuple[object, ...], _Drawn]] = []

_CHROME_LINES = 3  # title, and the two lines of the bottom bar


def page_names(pages: Pages, current: Page, model: TopModel, width: int) -> ChromeLine:
    """Return the first line of a page: the tabs of all pages, the machine, its problems."""
    state, badge = current.state, None
    if not state and (snapshot := model.shown.snapshot):
        state = "  ".join(
            map(printable, filter(None, (snapshot.instance_type, snapshot.instance_id, model.source)))
        )
        if width < _LONG_STATE:
            state = printable(snapshot.instance_type)
    if current.state:
        return head_line("neuron-top", pages.titles, pages.index(current), width, state=state)
    if model.trouble:
        badge = (printable(", ".join(filter(None, (model.position, model.trouble)))), Role.BADGE_BAD)
    elif model.position:
        badge = (printable(model.position), Role.BADGE)
    elif alerts := model.monitor.alerts:
        is_short = len(alerts) > 1 or width < _LONG_STATE
        text = plural(len(alerts), "alert") if is_short else printable(alerts[0].text)
        badge = (f"! {text}", Role.BADGE_WARNING)
    return head_line("neuron-top", pages.titles, pages.index(current), width, state=state, badge=badge)


def page_keys(pages: Pages, current: Page, keys: Mapping[str, str], width: int) -> ChromeLine:
    """Return the last line of a page: the function keys of the pages, and the keys that work everywhere."""
    own = keys.get("help", "question_mark"), keys.get("quit", "q")
    return _page_keys(pages.titles, pages.index(current), *own, width)


@lru_cache(maxsize=16)
def _page_keys(titles: tuple[str, ...], current: int, help_key: str, quit_key: str, width: int) -> ChromeLine:
    hints = [
        (_shown(help_key), "help"),
        ("^p", "palette" if width >= _LONG_STATE else "cmds"),
        (_shown(quit_key), "quit"),
    ]
    return pages_line(titles, current, hints, width)


def keys_bar(page: Page, keys: Mapping[str, str], width: int) -> Line:
    """Return the most important keys of a page, as many as fit; the help screen has all.

    Args:
        page: the current one.
        keys: the user's key bindings, by name.
        width: cells in the line.
    """
    hints = []
    for key in page.bindings():
        if key.hint:
            own = keys.get(f"{page.name}.{key.name}")
            usual = "j/k" if key.name == "down" else _shown(key.keys)
            hints.append((_shown(own) if own else usual, key.hint))
    return keys_line(hints or _OVERVIEW_HINTS, width)


def _shown(names: str) -> str:
    return shown_key(names.partition(",")[0])


def layout_for(model: TopModel, width: int, height: int) -> ScreenLayout:
    """Return the layout of the machine that the model shows."""
    devices = model.shown.view.devices if model.shown.view else ()
    cores = max((len(device.cores) for device in devices), default=1)
    return screen_layout(
        width, height, max(1, len(devices)), cores, FLOPS_WIDTHS if model.flops else PERCENT_WIDTHS
    )


def classic_frame(model: TopModel, width: int, height: int) -> Frame:
    """Draw the classic screen: all lines from top to bottom. The size must not be too small (see `layout.too_small`)."""
    layout, (cores, summary, details, bottom) = _machine_panes(model, width, height)
    blank = fit((), width)
    panes = zip(CLASSIC_PANES, layout.blanks, (cores, cpu_lines(model, width), summary, details), strict=True)
    return {
        "title": (title_line(model, width),),
        **{name: (*(blank,) * blanks, *lines) for name, blanks, lines in panes},
        "bottom": bottom,
    }


def _machine_panes(model: TopModel, width: int, height: int) -> _Drawn:
    # A machine on which nothing happens is not drawn again: the same view and rows look the same.
    shown = (model.shown.view, model.tree.rows, model.monitor.alerts, model.tabs, model.tab)
    version = model.shown.snapshot.neuroncore_version if model.shown.snapshot else ""
    how = (width, height, model.flops, model.colour, model.tree.selected, version)
    if _last and all(map(is_, shown, _last[0][0])) and how == _last[0][1]:
        return _last[0][2]
    layout = layout_for(model, width, height)
    cores = core_lines(model, width, layout.grid)
    summary = summary_lines(model, width)
    details = detail_lines(model, width, layout.tree_lines)
    drawn = layout, (cores, summary, details, bottom_lines(model, width))
    _last[:] = [(shown, how, drawn)]
    return drawn


def text_screen(model: TopModel, width: int) -> str:
    """Return the dashboard as text of any length: every device, the whole tree as it is open, no tabs and keys."""
    width = max(width, MIN_WIDTH)
    height = text_lines(model)
    shown = classic_frame(model, width, height)
    lines = [text_of(line).rstrip() for name in ("title", *CLASSIC_PANES) for line in shown[name]]
    return "\n".join(lines).rstrip("\n")


def text_lines(model: TopModel) -> int:
    """Return a height at which every device and the whole tree as it is open have room."""
    devices = len(model.shown.view.devices) if model.shown.view else 1
    return 64 + 2 * devices + 2 * len(model.tree.rows)


def whole_frame(
    pages: Pages,
    page: Page,
    model: TopModel,
    size: tuple[int, int],
    keys: Mapping[str, str],
    *,
    classic: bool,
    strip: Sequence[Line] = (),
) -> Frame:
    """Return everything on the screen, from top to bottom.

    Args:
        pages: all of them, for their tabs.
        page: the current one.
        model: the data.
        size: cells and lines.
        keys: the user's key bindings.
        classic: whether the overview is the real tool's screen.
        strip: the machine bar.
    """
    width, height = size
    if too_small(width, height):
        return {"title": small_screen(TITLE, (MIN_WIDTH, MIN_HEIGHT), (width, height))}
    height -= len(strip)
    if classic and page.name == pages.names[0]:
        return {"machines": strip, **classic_frame(model, width, height)}
    return {"machines": strip, **page_frame(pages, page, model, (width, height), keys)}


def page_frame(
    pages: Pages,
    page: Page,
    model: TopModel,
    size: tuple[int, int],
    keys: Mapping[str, str],
) -> Frame:
    """Return a page.

    Args:
        pages: all of them, for their tabs.
        page: the current one.
        model: the data.
        size: cells and lines.
        keys: the user's key bindings.
    """
    width, height = size
    room = height - _CHROME_LINES
    return {
        "title": (page_names(pages, page, model, width).line,),
        f"page-{page.name}": filled(page.live_lines(model, width, room), width, room),
        "bottom": (keys_bar(page, keys, width), page_keys(pages, page, keys, width).line),
    }
