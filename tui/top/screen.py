"""The whole dashboard as lines: what the panes show at a size, and the same as plain text."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING

from neurontools.tui.top.layout import FLOPS_WIDTHS, MIN_WIDTH, PERCENT_WIDTHS, ScreenLayout, screen_layout
from neurontools.tui.top.pages.cores import core_lines
from neurontools.tui.top.pages.memory import detail_lines, summary_lines
from neurontools.tui.top.pages.rows import bottom_lines, cpu_lines, title_line
from neurontools.tui.widgets.lines import Line, fit, text_of

if TYPE_CHECKING:
    from neurontools.tui.top.model import TopModel


@dataclass(frozen=True, slots=True)
class Panes:
    """The lines of each pane, blanks above them included. Together they fill the terminal."""

    title: tuple[Line, ...]
    cores: tuple[Line, ...]
    cpu: tuple[Line, ...]
    summary: tuple[Line, ...]
    details: tuple[Line, ...]
    bottom: tuple[Line, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines from top to bottom."""
        return (*self.title, *self.cores, *self.cpu, *self.summary, *self.details, *self.bottom)


def layout_for(model: TopModel, width: int, height: int) -> ScreenLayout:
    """Return the layout of the machine that the model shows."""
    devices = model.view.devices if model.view else ()
    cores = max((len(device.cores) for device in devices), default=1)
    return screen_layout(
        width, height, max(1, len(devices)), cores, FLOPS_WIDTHS if model.flops else PERCENT_WIDTHS
    )


def panes(model: TopModel, width: int, height: int) -> Panes:
    """Draw the dashboard; the size must not be too small (see `top_layout.too_small`)."""
    layout, (cores, summary, details, bottom) = _machine_panes(model, width, height)
    blank = fit((), width)
    blanks = [(blank,) * count for count in layout.blanks]
    return Panes(
        title=(title_line(model, width),),
        cores=(*blanks[0], *cores),
        cpu=(*blanks[1], *cpu_lines(model, width)),
        summary=(*blanks[2], *summary),
        details=(*blanks[3], *details),
        bottom=bottom,
    )


_Drawn = tuple[ScreenLayout, tuple[tuple[Line, ...], tuple[Line, ...], tuple[Line, ...], tuple[Line, ...]]]
_last: list[tuple[tuple[object, ...], tuple[object, ...], _Drawn]] = []


def _machine_panes(model: TopModel, width: int, height: int) -> _Drawn:
    # A machine on which nothing happens is not drawn again: the same view and rows look the same.
    shown = (model.view, model.tree.rows, model.lookout.alerts, model.tabs, model.tab)
    version = model.snapshot.neuroncore_version if model.snapshot else ""
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
    shown = panes(model, width, height)
    lines = [text_of(line).rstrip() for line in (*shown.title, *shown.cores, *shown.cpu, *shown.summary)]
    details = [text_of(line).rstrip() for line in shown.details]
    while details and not details[-1]:
        details.pop()
    return "\n".join([*lines, *details])


def text_lines(model: TopModel) -> int:
    """Return a height at which every device and the whole tree as it is open have room."""
    devices = len(model.view.devices) if model.view else 1
    return 64 + 2 * devices + 2 * len(model.tree.rows)
