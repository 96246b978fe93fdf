"""Cells of a timeline row as text: eighth blocks for how busy, a colour per operation, names where there is room."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from neurontools.profiler.timeline import EIGHTHS, NO_EVENT

if TYPE_CHECKING:
    from neurontools.profiler.timeline import Cells
    from neurontools.profiler.trace import Trace

BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN = Style()
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


def row_segments(
    trace: Trace, cells: Cells, selected: int, found: frozenset[int], *, colours: bool
) -> list[Segment]:
    """Return a row's cells: runs of cells of one event are one segment.

    Args:
        trace: the events.
        cells: what the cells show.
        selected: number of the selected event, or NO_EVENT.
        found: numbers of the actions that a search found.
        colours: whether operations get colours.
    """
    eighths, events = cells.eighths.tolist(), cells.event.tolist()
    segments: list[Segment] = []
    first = 0
    for column in range(1, len(events) + 1):
        if column < len(events) and events[column] == events[first]:
            continue
        segments += _run(trace, events[first], eighths[first:column], selected, found, colours=colours)
        first = column
    return segments


def _run(
    trace: Trace, event: int, eighths: list[int], selected: int, found: frozenset[int], *, colours: bool
) -> list[Segment]:
    if event == NO_EVENT:
        return [Segment(" " * len(eighths), PLAIN)]
    action = int(trace.action[event])
    name = trace.actions[action].name
    block, named = _styles(name, selected=event == selected, found=action in found, colours=colours)
    full = _full_stretch(eighths)
    if full is None:
        return [Segment("".join(BLOCKS[share] for share in eighths), block)]
    first, last = full
    text = _short(name)[: last - first].ljust(last - first)
    return [
        Segment("".join(BLOCKS[share] for share in eighths[:first]), block),
        Segment(text, named),
        Segment("".join(BLOCKS[share] for share in eighths[last:]), block),
    ]


def _styles(name: str, *, selected: bool, found: bool, colours: bool) -> tuple[Style, Style]:
    """Return the style of blocks and of names."""
    colour = zlib.crc32(name.encode("utf-8", "replace")) % len(_COLOURS)
    block = _BLOCK_STYLES[colour] if colours else PLAIN
    named = _NAME_STYLES[colour] if colours else _MONOCHROME
    if selected:
        return block + _SELECTED_BLOCK, named + _SELECTED_NAME
    return (block + _FOUND, named + _FOUND) if found else (block, named)


def _short(name: str) -> str:
    return name.removeprefix("aten.").removesuffix(".default")


def _full_stretch(eighths: list[int]) -> tuple[int, int] | None:
    """Return the first stretch of completely busy cells when a name has room in it."""
    first = 0
    while first < len(eighths) and eighths[first] != EIGHTHS:
        first += 1
    last = first
    while last < len(eighths) and eighths[last] == EIGHTHS:
        last += 1
    return (first, last) if last - first >= _NAME_CELLS else None
