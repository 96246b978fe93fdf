"""Cells of a timeline row as text: eighth blocks for how busy, a colour per operation, names where there is room."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from neurontools.profiler.timeline import EIGHTHS, NO_EVENT

if TYPE_CHECKING:
    from neurontools.profiler.arrays import Int64s
    from neurontools.profiler.timeline import Cells
    from neurontools.profiler.trace import Trace

BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN = Style()
_SELECTED = Style(reverse=True, bold=True)
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


def row_segments(
    trace: Trace, cells: Cells, selected: int, found: Int64s | None, *, colours: bool
) -> list[Segment]:
    """Return a row's cells: runs of cells of one event are one segment.

    Args:
        trace: the events.
        cells: what the cells show.
        selected: number of the selected event, or NO_EVENT.
        found: sorted by time, the events that a search found, or None.
        colours: whether operations get colours.
    """
    hits = set() if found is None else _hits(trace, cells, found)
    eighths, events = cells.eighths.tolist(), cells.event.tolist()
    segments: list[Segment] = []
    first = 0
    for column in range(1, len(events) + 1):
        if column < len(events) and events[column] == events[first]:
            continue
        segments += _run(trace, events[first], eighths[first:column], selected, hits, colours=colours)
        first = column
    return segments


def _hits(trace: Trace, cells: Cells, found: Int64s) -> set[int]:
    wanted = set(trace.action[found].tolist())
    return {event for event in set(cells.event.tolist()) - {NO_EVENT} if int(trace.action[event]) in wanted}


def _run(
    trace: Trace, event: int, eighths: list[int], selected: int, hits: set[int], *, colours: bool
) -> list[Segment]:
    if event == NO_EVENT:
        return [Segment(" " * len(eighths), PLAIN)]
    name = trace.actions[trace.action[event]].name
    colour = zlib.crc32(name.encode()) % len(_COLOURS)
    extra = _SELECTED if event == selected else _FOUND if event in hits else PLAIN
    block = (_BLOCK_STYLES[colour] if colours else PLAIN) + extra
    full = _full_stretch(eighths)
    if full is None:
        return [Segment("".join(BLOCKS[share] for share in eighths), block)]
    first, last = full
    text = name[: last - first].ljust(last - first)
    named = (_NAME_STYLES[colour] if colours else _MONOCHROME) + (
        PLAIN if colours and event == selected else extra
    )
    if event == selected:
        named = Style(reverse=not colours, bold=True, underline=True) + (
            _NAME_STYLES[colour] if colours else PLAIN
        )
    return [
        Segment("".join(BLOCKS[share] for share in eighths[:first]), block),
        Segment(text, named),
        Segment("".join(BLOCKS[share] for share in eighths[last:]), block),
    ]


def _full_stretch(eighths: list[int]) -> tuple[int, int] | None:
    """Return the first stretch of completely busy cells when a name has room in it."""
    first = 0
    while first < len(eighths) and eighths[first] != EIGHTHS:
        first += 1
    last = first
    while last < len(eighths) and eighths[last] == EIGHTHS:
        last += 1
    return (first, last) if last - first >= _NAME_CELLS else None
