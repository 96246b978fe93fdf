"""The lines of a timeline: headings and rows of each core and clock, folded or not, drawn as segments with their axis."""

from __future__ import annotations

import itertools
import re
import zlib
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style

from neurontools.base.text import short_operator
from neurontools.profiler.capture.format import ENGINES, NO_CORE, Track
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import EIGHTHS, Cells, TimelineRow, Viewport, format_tick, tick_step
from neurontools.tui.widgets.frames import MARKER
from neurontools.tui.widgets.lines import BLOCKS, Role, fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.trace.axis import Axis
    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask
    from neurontools.profiler.trace.trace import Trace, TraceRow
    from neurontools.tui.widgets.theme import Theme


FOLDED, OPEN = "▸", "▾"
_MOST_OPEN = 4
_MOST_LINES, _MOST_LINES_WHOLE = 8, 2


class GroupKey(NamedTuple):
    """A group of rows: those of a core on one clock, or only its engines."""

    process: int
    nc: int
    measured: bool
    engines: bool = False


class Heading(NamedTuple):
    """A line above the rows of a group."""

    title: str
    key: GroupKey


class RowLine(NamedTuple):
    """A row, or a folded group.

    Args:
        label: its name.
        rows: all rows in it, by index.
        drawn: those that it draws: each cell is that of the busiest.
        folded: the group.
        is_whole: whether it shows executions as a whole, for which low lines will do.
    """

    label: str
    rows: tuple[int, ...]
    drawn: tuple[int, ...]
    folded: GroupKey | None = None
    is_whole: bool = False


def group_of(row: TraceRow) -> GroupKey:
    """Return the group of a row: its core and clock."""
    return GroupKey(row.process, row.nc, row.track.measured)


def inner_group_of(row: TraceRow) -> GroupKey:
    """Return the smallest group of a row: the engines of its core, if it is one of them."""
    return group_of(row)._replace(engines=row.track in ENGINES)


def folded_at_first(rows: Sequence[TimelineRow]) -> frozenset[GroupKey]:
    """Return the groups of all cores but the first where there are many."""
    keys = list(dict.fromkeys(group_of(row.row) for row in rows if not row.row.track.measured))
    return frozenset(keys[1:]) if len(keys) > _MOST_OPEN else frozenset()


def line_contents(
    rows: Sequence[TimelineRow], shown: Sequence[int], folded: frozenset[GroupKey]
) -> list[Heading | RowLine]:
    """Return the lines from top to bottom.

    Args:
        rows: of the trace.
        shown: which of them the axis has, by index.
        folded: groups that take one line.
    """
    groups: dict[GroupKey, list[int]] = {}
    for number in shown:
        groups.setdefault(group_of(rows[number].row), []).append(number)
    has_several = len({key.process for key in groups}) > 1
    lines: list[Heading | RowLine] = []
    for key, members in groups.items():
        first = rows[members[0]].row
        if key in folded:
            whole = [number for number in members if rows[number].row.track is Track.MODEL]
            label = f"{FOLDED}{short_label(first, has_several=has_several)}"
            lines.append(RowLine(label, tuple(members), tuple(whole or members), key, bool(whole)))
            continue
        lines.append(Heading(f"{OPEN} {_title(first)}", key))
        inner = key._replace(engines=True)
        engines = tuple(number for number in members if rows[number].row.track in ENGINES)
        for number in members:
            if inner not in folded or number not in engines:
                row = rows[number].row
                lines.append(RowLine(row.name, (number,), (number,), is_whole=row.track is Track.MODEL))
            elif number == engines[0]:
                lines.append(RowLine(f"{FOLDED}engines", engines, engines, inner))
    return lines


def _title(row: TraceRow) -> str:
    clock = "wall clock, measured" if row.track.measured else "device clock, modelled"
    core = "" if row.nc == NO_CORE else f" NC{row.nc}"
    return f"{row.process_label}{core}: {clock}"


def short_label(row: TraceRow, *, has_several: bool) -> str:
    """Return a short name of a row's core and clock, with the process where there are several."""
    process = f"r{row.rank}" if row.rank is not None else row.group or str(row.pid)
    core = "host" if row.nc == NO_CORE else f"NC{row.nc}"
    words = [process] if has_several else []
    words.append(core)
    if row.track.measured and row.nc != NO_CORE:
        words.append("wall")
    return " ".join(words)


def fitting_height(lines: Sequence[Heading | RowLine], room: int) -> int:
    """Return how high rows may be so that all fit, at least one line; those of whole executions stay low."""
    rows = [line for line in lines if isinstance(line, RowLine)]
    whole = sum(row.is_whole for row in rows)
    room -= len(lines) - len(rows)
    for height in range(_MOST_LINES, 1, -1):
        if whole * min(height, _MOST_LINES_WHOLE) + (len(rows) - whole) * height <= room:
            return height
    return 1


def height_of(line: Heading | RowLine, height: int) -> int:
    """Return the lines that a heading or a row takes where rows are `height` lines high."""
    if isinstance(line, Heading):
        return 1
    return min(height, _MOST_LINES_WHOLE) if line.is_whole else height


PLAIN = Style()
DIM = Style(dim=True)
GAP = "┊"
GUTTER = 14
_EIGHTHS = f" {BLOCKS}"
_BOLD = Style(bold=True)
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
_FADED = {True: Style(color="#4d5761"), False: Style(color="#c6ccd2")}
_FOUND = Style(underline=True, bold=True)
_MONOCHROME = Style(reverse=True)
_RANGE = Style(reverse=True)
_DIMMED = 2 * len(_COLOURS)
_TICK_CELLS = 12
_FULL = re.compile(f"█{{{_NAME_CELLS},}}")


def label_segments(text: str, base: Style, look: Theme, *, selected: bool) -> list[Segment]:
    """Return the name of a row, and the line between it and the cells."""
    line = Segment("│", _over(base, DIM))
    if not selected:
        return [Segment(f" {text}", base), line]
    cursor, strong = look.styles[Role.CURSOR], look.styles[Role.ON_STRONG]
    return [Segment(MARKER, _over(base, cursor)), Segment(text, _over(base, strong)), line]


def axis_segments(axis: Axis, view: Viewport, marked: tuple[int, int] | None) -> list[Segment]:
    """Return the line of times, with a marked range of positions."""
    text = axis_text(axis, view)
    head = Segment(axis.name.ljust(GUTTER), DIM)
    if marked is None:
        return [head, Segment(text, DIM)]
    first, last = (max(0, min(view.columns, view.column_of(position))) for position in marked)
    last = max(last, first + 1)
    return [head, Segment(text[:first], DIM), Segment(text[first:last], _RANGE), Segment(text[last:], DIM)]


@dataclass(frozen=True, slots=True)
class Drawing:
    """How rows are drawn.

    Args:
        trace: the events.
        selected: number of the selected event, or NO_EVENT.
        looks: by action, from `looks_of`.
        marked: numbers of other events to point out: those that the selected one waited for, or that wait for it.
        path: by action, whether it stays bright; None for all.
        blank: what cells show in which nothing happened.
        colours: whether operations get colours.
        base: the style of the widget.
        linked: the style of marked events.
        dark: whether the theme is dark.
    """

    trace: Trace
    selected: int
    looks: Int64s
    marked: Int64s
    path: Mask | None
    blank: str
    colours: bool
    base: Style
    linked: Style = PLAIN
    dark: bool = True


def row_lines(drawing: Drawing, cells: Cells, actions: Codes, lines: int) -> list[list[Segment]]:
    """Return a row's cells, from top to bottom; neighbours of one style are one segment.

    Args:
        drawing: how.
        cells: the contents.
        actions: of the cells' events.
        lines: how high; above one, the upper eighth stays empty, so that rows stay apart.
    """
    full = EIGHTHS * lines - (1 if lines > 1 else 0)
    heights, events = cells.heights(full), cells.event
    texts = []
    for above in range(lines - 1, -1, -1):
        levels = np.clip(heights - EIGHTHS * above, 0, EIGHTHS).tolist()
        texts.append("".join([_EIGHTHS[level] for level in levels]))
    segments: list[list[Segment]] = [[] for _ in range(lines)]
    edges = _runs(drawing, events, actions)
    dim = _over(drawing.base, DIM)
    for first, last in itertools.pairwise(edges):
        event, action = int(events[first]), int(actions[first])
        if event == NO_EVENT:
            for line in segments:
                line.append(Segment(drawing.blank[first:last], dim))
            continue
        block, named = _styles(drawing, event, action)
        for line, text in zip(segments, texts, strict=True):
            line.append(Segment(text[first:last], block))
        if last - first >= _NAME_CELLS and event == int(events[last - 1]):
            segments[-1].pop()
            segments[-1] += _named(drawing.trace.actions[action].title, texts[-1][first:last], block, named)
    return segments


def _runs(drawing: Drawing, events: Int64s, actions: Codes) -> list[int]:
    """Return the edges of runs of cells with one style; events with room for a name have a run of their own."""
    look = drawing.looks[actions]
    if drawing.path is not None:
        look = np.where(drawing.path[actions], look, look + _DIMMED)
    if drawing.selected != NO_EVENT:
        own = (events == drawing.selected) | np.isin(events, drawing.marked)
        look = np.where(own, events + 2 * _DIMMED, look)
    look = np.where(events == NO_EVENT, -1, look)
    other: Int64s = np.flatnonzero(np.diff(events)) + 1
    starts = np.concatenate(([0], other))
    ends = np.concatenate((other, [len(events)]))
    wide = ends - starts >= _NAME_CELLS
    edges = np.concatenate(([0], np.flatnonzero(np.diff(look)) + 1, starts[wide], ends[wide], [len(events)]))
    distinct: list[int] = np.unique(edges).tolist()
    return distinct


def _named(name: str, text: str, block: Style, named: Style) -> list[Segment]:
    """Return the cells of an event with its name where they are full."""
    full = _FULL.search(text)
    if full is None:
        return [Segment(text, block)]
    first, last = full.span()
    name = fixed(short_operator(name), last - first)
    return [Segment(text[:first], block), Segment(name, named), Segment(text[last:], block)]


def looks_of(trace: Trace, found: frozenset[int]) -> Int64s:
    """Return a number for the style of each action; `found` are actions that a search found."""
    titles = [action.title for action in trace.actions]
    colours = {title: zlib.crc32(title.encode("utf-8", "replace")) % len(_COLOURS) for title in set(titles)}
    looks: Int64s = np.array([colours[title] for title in titles], dtype=np.int64)
    looks[list(found)] += len(_COLOURS)
    return looks


class _Mark(Enum):
    """How an event is pointed out."""

    NONE = "none"
    SELECTED = "selected"
    LINKED = "linked"
    FOUND = "found"
    FADED = "faded"


def _styles(drawing: Drawing, event: int, action: int) -> tuple[Style, Style]:
    """Return the style of blocks and of names."""
    look = int(drawing.looks[action])
    colour = look % len(_COLOURS) if drawing.colours else -1
    mark = _Mark.NONE
    if event == drawing.selected:
        mark = _Mark.SELECTED
    elif event in drawing.marked:
        mark = _Mark.LINKED
    elif look >= len(_COLOURS):
        mark = _Mark.FOUND
    elif drawing.path is not None and not drawing.path[action]:
        mark = _Mark.FADED
    return _pair(drawing.base, colour, mark, drawing.linked, dark=drawing.dark)


@lru_cache(maxsize=256)
def _pair(base: Style, colour: int, mark: _Mark, linked: Style, *, dark: bool) -> tuple[Style, Style]:
    block = _BLOCK_STYLES[colour] if colour >= 0 else PLAIN
    named = _NAME_STYLES[colour] if colour >= 0 else _MONOCHROME
    match mark:
        case _Mark.SELECTED if colour >= 0:
            block, named = _BOLD, _BOLD + _MONOCHROME
        case _Mark.SELECTED:
            block, named = _BOLD + _MONOCHROME, named + _SELECTED_NAME
        case _Mark.LINKED if colour >= 0:
            block, named = linked + _FOUND, linked + _FOUND + _MONOCHROME
        case _Mark.FOUND | _Mark.LINKED:
            block, named = block + _FOUND, named + _FOUND
        case _Mark.FADED:
            block = named = _FADED[dark] if colour >= 0 else DIM
    return base + block, base + named


@lru_cache(maxsize=64)
def _over(base: Style, style: Style) -> Style:
    return base + style


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
    times = np.arange(-(-first // step) * step, last + 1, step, dtype=np.int64)
    text = list(blank_cells(axis, view))
    free = 0
    for time_ns, position in zip(times.tolist(), axis.at_clock(times).tolist(), strict=True):
        mark = "╵" + format_tick(time_ns, step)
        column = view.column_of(position)
        if free <= column <= view.columns - len(mark):
            text[column : column + len(mark)] = mark
            free = column + len(mark) + 1
    return "".join(text)
