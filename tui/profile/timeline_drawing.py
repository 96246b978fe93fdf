"""Drawing of the timeline's rows and of its axis as segments."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from rich.style import Style

from neurontools.base.text import printable
from neurontools.profiler.capture.format import NO_CORE
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import EIGHTHS, format_tick, tick_step
from neurontools.tui.widgets.lines import BLOCKS, fixed

if TYPE_CHECKING:
    from neurontools.profiler.trace.axis import Axis
    from neurontools.profiler.trace.timeline import Cells, TimelineRow, Viewport
    from neurontools.profiler.trace.trace import Trace, TraceRow

PLAIN = Style()
DIM = Style(dim=True)
GAP = "┊"
GUTTER = 14
_EIGHTHS = f" {BLOCKS}"
_SELECTED_BLOCK = Style(reverse=True, bold=True)
_SELECTED_NAME = Style(bold=True, underline=True)
_NAME_CELLS = 4
_COLOURS = (
    "#4e9bd6",
    "#d98b4a",
    "#5fb06a",
    "#d6707a",
    "#a58ad0",
    "#b5976a",
    "#d88fc0",
    "#9aa5ad",
    "#b9bd4f",
    "#4fbcc4",
    "#7f9be8",
    "#e0a95f",
)
_BLOCK_STYLES = tuple(Style(color=colour) for colour in _COLOURS)
_NAME_STYLES = tuple(Style(color="#101418", bgcolor=colour) for colour in _COLOURS)
_FOUND = Style(underline=True, bold=True)
_MONOCHROME = Style(reverse=True)
_TICK_CELLS = 12


@dataclass(frozen=True, slots=True)
class Drawing:
    """How rows are drawn.

    Args:
        trace: the events.
        selected: number of the selected event, or NO_EVENT.
        found: numbers of the actions that a search found.
        marked: numbers of other events to point out, such as those that the selected one depends on.
        blank: what cells show in which nothing happened.
        colours: whether operations get colours.
    """

    trace: Trace
    selected: int
    found: frozenset[int]
    marked: frozenset[int]
    blank: str
    colours: bool


def short_name(name: str) -> str:
    """Return the name of an operation without what all names share."""
    return printable(name.removeprefix("aten.").removesuffix(".default"))


def row_lines(drawing: Drawing, row: TraceRow, cells: Cells, lines: int) -> list[list[Segment]]:
    """Return a row's cells, from top to bottom; consecutive cells of one event are one segment.

    Args:
        drawing: how.
        row: whose cells they are.
        cells: the contents.
        lines: how high; above one, the upper eighth stays empty, so that rows stay apart.
    """
    full = EIGHTHS * lines - (1 if lines > 1 else 0)
    heights, events = cells.heights(full), cells.event.tolist()
    actions = row.events.at(np.maximum(cells.event - row.first, 0)).action.tolist()
    levels = [np.clip(heights - EIGHTHS * above, 0, EIGHTHS).tolist() for above in range(lines - 1, -1, -1)]
    found: list[list[Segment]] = [[] for _ in range(lines)]
    first = 0
    for column in range(1, len(events) + 1):
        if column < len(events) and events[column] == events[first]:
            continue
        event = events[first]
        if event == NO_EVENT:
            for line in found:
                line.append(Segment(drawing.blank[first:column], DIM))
        else:
            block, named = _styles(drawing, event, actions[first])
            for line, shares in zip(found[:-1], levels[:-1], strict=True):
                line.append(Segment("".join([_EIGHTHS[share] for share in shares[first:column]]), block))
            name = drawing.trace.actions[actions[first]].name
            found[-1] += _named(name, levels[-1][first:column], block, named)
        first = column
    return found


def _named(name: str, eighths: list[int], block: Style, named: Style) -> list[Segment]:
    """Return the cells of an event with its name where they are full."""
    full = _full_stretch(eighths)
    if full is None:
        return [Segment("".join([_EIGHTHS[share] for share in eighths]), block)]
    first, last = full
    return [
        Segment("".join([_EIGHTHS[share] for share in eighths[:first]]), block),
        Segment(fixed(short_name(name), last - first), named),
        Segment("".join([_EIGHTHS[share] for share in eighths[last:]]), block),
    ]


def _styles(drawing: Drawing, event: int, action: int) -> tuple[Style, Style]:
    """Return the style of blocks and of names."""
    name = drawing.trace.actions[action].name
    colour = zlib.crc32(name.encode("utf-8", "replace")) % len(_COLOURS)
    block = _BLOCK_STYLES[colour] if drawing.colours else PLAIN
    named = _NAME_STYLES[colour] if drawing.colours else _MONOCHROME
    if event == drawing.selected:
        return block + _SELECTED_BLOCK, named + _SELECTED_NAME
    if action in drawing.found or event in drawing.marked:
        return block + _FOUND, named + _FOUND
    return block, named


def _full_stretch(eighths: list[int]) -> tuple[int, int] | None:
    """Return the first stretch of fully busy cells that has room for a name."""
    first = 0
    while first < len(eighths):
        while first < len(eighths) and eighths[first] != EIGHTHS:
            first += 1
        last = first
        while last < len(eighths) and eighths[last] == EIGHTHS:
            last += 1
        if last - first >= _NAME_CELLS:
            return first, last
        first = last
    return None


def blank_cells(axis: Axis, view: Viewport) -> str:
    """Return what cells show in which nothing happened: a mark where the axis leaves out time, else a blank."""
    cells = [" "] * view.columns
    for gap in axis.gaps(view.start_ns, view.end_ns):
        if gap.length_ns > gap.width:
            first = max(view.column_of(gap.position), 0)
            last = max(view.column_of(gap.position + gap.width), first + 1)
            for column in range(first, min(last, view.columns)):
                cells[column] = GAP
    return "".join(cells)


def axis_text(axis: Axis, view: Viewport) -> str:
    """Return the marks of time above the rows."""
    first, last = axis.clock(np.array([view.start_ns, view.end_ns], dtype=np.int64)).tolist()
    step = tick_step(max(last - first, 1), max(view.columns // _TICK_CELLS, 1))
    shown = np.arange(-(-first // step) * step, last + 1, step, dtype=np.int64)
    text = list(blank_cells(axis, view))
    free = 0
    for time_ns, position in zip(shown.tolist(), axis.at_clock(shown).tolist(), strict=True):
        mark = "╵" + format_tick(time_ns, step)
        column = view.column_of(position)
        if free <= column <= view.columns - len(mark):
            text[column : column + len(mark)] = mark
            free = column + len(mark) + 1
    return "".join(text)


def heading_of(row: TimelineRow) -> str:
    """Return the heading above the rows of a core and clock."""
    clock = "wall clock, measured" if row.row.track.measured else "device clock, modelled"
    core = "" if row.row.nc == NO_CORE else f" NC{row.row.nc}"
    return f"{row.row.process_label}{core}: {clock}"


def line_contents(rows: tuple[TimelineRow, ...], shown: list[int]) -> list[str | int]:
    """Return what the parts of the timeline are, top to bottom: a heading, or a row by its index."""
    found: list[str | int] = []
    known: tuple[int, int, bool] | None = None
    for number in shown:
        row = rows[number].row
        key = (row.process, row.nc, row.track.measured)
        if key != known:
            known = key
            found.append(heading_of(rows[number]))
        found.append(number)
    return found
