"""The lines of a timeline: headings and rows of each core and clock, folded or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neurontools.profiler.capture.format import ENGINES, NO_CORE, Track

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.trace.timeline import TimelineRow
    from neurontools.profiler.trace.trace import TraceRow

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
