"""Runs of like events as one: 32 processes of one program that start in a second are one line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.dashboard.events import MachineEvent, MachineEventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDED_S = 10.0
"""Like events at most this many seconds apart are one line."""

_NUMBER = re.compile(r"\d+")
_FEWEST = 2
_MOST_LISTED = 4


class FoldedEvents(Struct, frozen=True):
    """Events of one kind whose texts differ in numbers only, newest first."""

    events: tuple[MachineEvent, ...]

    @property
    def newest(self) -> MachineEvent:
        """The last of them."""
        return self.events[0]

    @property
    def text(self) -> str:
        """The text of the event, or of all together with their number."""
        newest = self.newest
        if len(self.events) < _FEWEST:
            return newest.text
        what = _merge_numbers([event.what for event in reversed(self.events)])
        subject, _, rest = what.partition(": ")
        if newest.kind in {MachineEventKind.STARTED, MachineEventKind.ENDED}:
            pids = sorted(event.pid for event in self.events if event.pid is not None)
            span = f", pids {pids[0]} to {pids[-1]}" if pids else ""
            return f"{rest or subject} x{len(self.events)} {newest.kind}{span}"
        count = sum(event.count for event in self.events)
        return f"{what} +{count}" if newest.kind is MachineEventKind.ECC else f"{what} ({count} times)"


def _merge_numbers(texts: list[str]) -> str:
    """Return one text for several that differ in numbers only: `link ND8 to ND9, 12 is down`, `rank0-31`."""
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    merged = iter([_merge(dict.fromkeys(column)) for column in numbers])
    return _NUMBER.sub(lambda _: next(merged), texts[0])


def _merge(numbers: dict[str, None]) -> str:
    if len(numbers) <= _MOST_LISTED:
        return ", ".join(sorted(numbers, key=int))
    ordered = sorted(map(int, numbers))
    return f"{ordered[0]}-{ordered[-1]}"


def fold(events: Iterable[MachineEvent]) -> tuple[FoldedEvents, ...]:
    """Return events, newest first, with runs of like ones as one."""
    runs: list[list[MachineEvent]] = []
    patterns: list[tuple[MachineEventKind, str]] = []
    for event in events:
        pattern = (event.kind, _NUMBER.sub("#", event.what))
        if runs and pattern == patterns[-1] and 0 <= runs[-1][-1].unix_s - event.unix_s <= FOLDED_S:
            runs[-1].append(event)
        else:
            runs.append([event])
            patterns.append(pattern)
    return tuple(FoldedEvents(tuple(run)) for run in runs)
