"""The screens of neuron-top as lines: the classic panes at a size, pages with their bars, plain text."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

from neurontools.tui.names import shown_key
from neurontools.tui.top.layout import (
    FLOPS_WIDTHS,
    MIN_HEIGHT,
    MIN_WIDTH,
    PERCENT_WIDTHS,
    ScreenLayout,
    screen_layout,
)
from neurontools.tui.top.page import filled
from neurontools.tui.top.pages.cores import core_lines
from neurontools.tui.top.pages.memory import detail_lines, summary_lines
from neurontools.tui.top.pages.rows import (
    bottom_lines,
    cpu_lines,
    hints_line,
    place_tabs,
    tab_at,
    tabs_line,
    title_line,
)
from neurontools.tui.widgets.lines import Line, Role, fit, text_of, width_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.page import Page
    from neurontools.tui.top.pages.rows import PlacedTab

Frame = dict[str, "Sequence[Line]"]
"""Lines by the id of their pane; other panes are empty."""

_Drawn = tuple[ScreenLayout, tuple[tuple[Line, ...], tuple[Line, ...], tuple[Line, ...], tuple[Line, ...]]]

_HEAD = " Pages  "

CLASSIC_PANES = ("cores", "cpu", "summary", "details")
"""The panes of the classic screen between title and bottom bar."""

_last: list[tuple[tuple[object, ...], tuple[object, ...], _Drawn]] = []

_CHROME_LINES = 3  # title, and the two lines of the bottom bar


def page_bar(pages: Sequence[Page], current: Page, width: int) -> Line:
    """Return the names of the pages; where they do not fit, the current one's name and the keys of the others."""
    return tabs_line(_HEAD, _tabs(pages, current, width), pages.index(current), width)


def page_at(pages: Sequence[Page], current: Page, width: int, x: int) -> Page | None:
    """Return the page whose name is at a column, None if there is none."""
    position = tab_at(_tabs(pages, current, width), x)
    return None if position is None else pages[position]


def keys_bar(page: Page, keys: Mapping[str, str], width: int) -> Line:
    """Return the most important keys, as many as fit; the help screen has all.

    Args:
        page: the current one.
        keys: the user's key bindings, by name.
        width: cells in the line.
    """
    hints = [(keys.get("quit", "q"), "quit"), (keys.get("help", "question_mark"), "help")]
    hints += [
        (keys.get(f"{page.name}.{key.name}", key.keys), key.hint) for key in page.bindings() if key.hint
    ]
    return hints_line(((shown_key(names.partition(",")[0]), text) for names, text in hints), width)


def _tabs(pages: Sequence[Page], current: Page, width: int) -> tuple[PlacedTab, ...]:
    names = [f"F{number}:{page.title}" for number, page in enumerate(pages, 1)]
    if len(_HEAD) + sum(width_of(name) + 2 for name in names) > width:
        short = (name.partition(":")[0] for name in names)
        names = [
            name if page is current else key for page, name, key in zip(pages, names, short, strict=True)
        ]
    return place_tabs(names, pages.index(current), len(_HEAD), width)


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
        page: the current one.
        model: the data.
        title: the first line.
        size: cells and lines.
        keys: the user's key bindings.
    """
    width, height = size
    room = height - _CHROME_LINES
    return {
        "title": (title,),
        f"page-{page.name}": filled(page.lines(model, width, room), width, room),
        "bottom": (page_bar(pages, page, width), keys_bar(page, keys, width)),
    }


def small_frame(width: int, height: int) -> Frame:
    """Return the screen of a terminal that is too small."""
    text = (
        "neuron-top",
        f"needs {MIN_WIDTH}x{MIN_HEIGHT},",
        f"has {width}x{height}",
        "(q: quit)",
    )
    lines = tuple(fit(((line.center(width), Role.PLAIN),), width) for line in text)
    above = max(0, (height - len(lines)) // 2)
    return {"title": (*((fit((), width),) * above), *lines)[:height]}
