"""Lines about what a group of events consists of: operators, shapes, layers, each with its share and its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base import units
from neurontools.tui.profile.page import short_name
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.lines import Role, fit, fixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.profiler.analysis.operators import GroupPart
    from neurontools.tui.widgets.lines import Line

_BAR = 12
_LEAST_FOR_BAR = 56
PARTS_NOTE = "share, time, events"


def part_lines(parts: Sequence[GroupPart], known: str, width: int, room: int) -> Iterator[Line]:
    """Yield a line for each part, at most as many as have room.

    Args:
        parts: those with most time first.
        known: what all names begin with and none shows: the operator before its shapes.
        width: cells of a line.
        room: number of lines.
    """
    total = sum(part.total_ns for part in parts) or 1
    cells = _BAR if width >= _LEAST_FOR_BAR else 0
    name = width - cells - 27
    shown = parts if len(parts) <= room else parts[: max(room - 1, 0)]
    for part in shown:
        share = part.total_ns / total
        spans = (
            (f" {fixed(short_name(part.name.removeprefix(known)), name)} ", Role.PLAIN),
            *(bar(share, cells) if cells else ()),
            (f"{100 * share:6.1f}%", Role.PLAIN),
            (units.format_ns(part.total_ns).rjust(10), Role.VALUE),
            (f"{part.count:>6}", Role.DIM),
        )
        yield fit(spans, width)
    if len(shown) < len(parts):
        yield fit(((f" and {len(parts) - len(shown)} more", Role.DIM),), width)
