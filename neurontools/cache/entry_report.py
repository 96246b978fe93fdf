"""What the cache browser says of one row: an entry's details, why it was compiled, and lookups over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.units import format_duration
from neurontools.cache.events import Events, LookupEvent, LookupEventKind
from neurontools.cache.show import read_details
from neurontools.cache.why.explain import explain_place
from neurontools.cache.why.nearest import Neighbourhood
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.cache.show import EntryDetails
    from neurontools.cache.walk import EntryRef
    from neurontools.cache.why.explain import Explanation

_HOUR_S = 3600.0
_SPANS = (
    (_HOUR_S, "1 hour"),
    (24 * _HOUR_S, "24 hours"),
    (7 * 24 * _HOUR_S, "7 days"),
    (30 * 24 * _HOUR_S, "30 days"),
    (365 * 24 * _HOUR_S, "1 year"),
)
# A neighbourhood keeps the graphs it has read.
_MOST_EXPLAINED = 64


@dataclass(frozen=True, slots=True)
class EntryReport:
    """An entry: its details, and why it was compiled."""

    details: EntryDetails
    explanation: Explanation


class RowReporter:
    """Reports on rows of one root, which is read once. Not for several threads at once.

    Args:
        root: of the cache.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._neighbourhood: Neighbourhood | None = None
        self._explained = 0
        self._events: dict[str, list[LookupEvent]] | None = None

    def report(self, place: EntryRef) -> EntryReport | None:
        """Return the report on an entry, None if it is gone or cannot be read."""
        try:
            if self._neighbourhood is None or self._explained >= _MOST_EXPLAINED:
                self._neighbourhood, self._explained = Neighbourhood(self._root), 0
            self._explained += 1
            return EntryReport(read_details(self._root, place), explain_place(self._neighbourhood, place))
        except NeuronToolsError:
            return None

    def lookups(self, modules: Iterable[str]) -> tuple[LookupEvent, ...]:
        """Return this user's recorded lookups of some modules, oldest first."""
        if self._events is None:
            self._events = {}
            for event in Events(self._root).read():
                self._events.setdefault(event.module, []).append(event)
        found = [event for module in dict.fromkeys(modules) for event in self._events.get(module, ())]
        return tuple(sorted(found, key=lambda event: event.unix_s))


def hits_over_time(events: Sequence[LookupEvent], now: float, columns: int) -> tuple[str, tuple[int, ...]]:
    """Return a span up to now that holds all events, in words, and the hits in each of its equal parts.

    Args:
        events: oldest first.
        now: Unix seconds.
        columns: number of parts.
    """
    first = events[0].unix_s if events else now
    span_s, words = next((span for span in _SPANS if first >= now - span[0]), _SPANS[-1])
    counts = [0] * columns
    for event in events:
        part = int((event.unix_s - now + span_s) / span_s * columns)
        if event.kind is LookupEventKind.HIT and part >= 0:
            counts[min(part, columns - 1)] += 1
    return words, tuple(counts)


def format_lookups(events: Sequence[LookupEvent]) -> str:
    """Return how many lookups there were, and the time that they saved or took."""
    parts = []
    for kind, one, several, effect in _EFFECTS:
        found = [event.seconds for event in events if event.kind is kind]
        if found:
            seconds = f" {effect} {format_duration(sum(found))}" if effect else ""
            parts.append(f"{len(found):,} {one if len(found) == 1 else several}{seconds}")
    return ", ".join(parts)


_EFFECTS = (
    (LookupEventKind.HIT, "hit", "hits", "saved"),
    (LookupEventKind.MISS, "compile", "compiles", "took"),
    (LookupEventKind.WAIT, "wait for another process", "waits for other processes", "took"),
    (LookupEventKind.FAILURE, "failed compile", "failed compiles", ""),
    (LookupEventKind.REPLAY, "failure reported again", "failures reported again", ""),
    (LookupEventKind.DAMAGED, "damaged NEFF", "damaged NEFFs", ""),
)
