"""The events of one row of a trace, and what a timeline asks of them.

Two kinds exist: columns as they were recorded (`FlatEvents`), and executions of programs (`trace/periodic.py`), whose
events are the program's, once an execution, and are never all in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.trace.intervals import BusyIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask

NO_EVENT = -1
BLOCK_EVENTS = 1 << 16
_FAN_OUT = 16
_CANDIDATES_PER_RANGE = 256


@dataclass(frozen=True, slots=True)
class EventBlock:
    """Some events of a row, by columns, in order of start.

    Args:
        start: int64 nanoseconds since the first event of the trace.
        duration: int64 nanoseconds.
        action, model: numbers in the tables of the trace.
        execution: the model's executions count from 1.
        status: NRT status.
        value: bytes of copies and allocations, else 0.
    """

    start: Int64s
    duration: Int64s
    action: Codes
    model: Codes
    execution: Codes
    status: Codes
    value: Int64s

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def joined(cls, blocks: Sequence[EventBlock]) -> EventBlock:
        """Return the events of several blocks, one block after another."""
        columns = (np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(cls))
        return cls(*columns)

    def take(self, chosen: slice | Int64s | Mask) -> EventBlock:
        """Return some of them."""
        return EventBlock(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Part:
    """Events of a row that happen `weight` times; parts of several rows with one key belong to the same executions."""

    weight: int
    events: EventBlock
    key: object = None


class RowEvents(ABC):
    """The events of one row in order of start; their numbers count from 0."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of events."""

    @property
    @abstractmethod
    def start_ns(self) -> int:
        """Start of the first event; there is at least one."""

    @property
    @abstractmethod
    def end_ns(self) -> int:
        """End of the event that ends last."""

    @abstractmethod
    def at(self, numbers: Int64s) -> EventBlock:
        """Return events by number."""

    @abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """Return the distinct contents of the row. Sums, counts and unions are those of the parts times their weights."""

    @abstractmethod
    def first_from(self, times: Int64s) -> Int64s:
        """Return the number of the first event that starts at each time or later (`count` where none does)."""

    @abstractmethod
    def busy_between(self, edges: Int64s) -> Int64s:
        """Return the busy nanoseconds between neighbouring edges (sorted int64, n + 1 edges, n values)."""

    @abstractmethod
    def longest(self, bounds: Int64s) -> Int64s:
        """Return the longest event of each range between neighbouring bounds, or NO_EVENT where it is empty.

        With very many events in view an event among the longest.
        """

    @abstractmethod
    def latest(self, numbers: Int64s) -> Int64s:
        """Return which event up to each one ends last."""

    @abstractmethod
    def of_actions(self, wanted: Mask) -> Int64s:
        """Return the numbers of the events whose action is wanted; `wanted` is by action."""

    @abstractmethod
    def between(self, from_ns: int, to_ns: int) -> RowEvents:
        """Return the events that touch a stretch of time."""

    @abstractmethod
    def of_executions(self, wanted: ExecutionFilter) -> RowEvents:
        """Return the events of the chosen executions."""

    def block(self, first: int, last: int) -> EventBlock:
        """Return the events from `first` to `last`, exclusive."""
        return self.at(np.arange(first, last, dtype=np.int64))

    def blocks(self, size: int = BLOCK_EVENTS) -> Iterator[EventBlock]:
        """Yield all events in blocks."""
        for first in range(0, self.count, size):
            yield self.block(first, min(first + size, self.count))

    def at_time(self, time_ns: int) -> int:
        """Return the event that runs at a time, else the next event, else the last."""
        index = int(self.first_from(np.array([time_ns + 1], dtype=np.int64))[0])
        if index > 0:
            running = self.latest(np.array([index - 1], dtype=np.int64))
            event = self.at(running)
            if int(event.start[0] + event.duration[0]) > time_ns:
                return int(running[0])
        return min(index, self.count - 1)


class ExecutionFilter(ABC):
    """Chooses executions of models."""

    @abstractmethod
    def chosen(self, model: Codes, execution: Codes, start: Int64s) -> Mask:
        """Return which ones are chosen, by number of the model and of the execution and by start of the event."""


class FlatEvents(RowEvents):
    """Columns, sorted by start."""

    def __init__(self, events: EventBlock) -> None:
        self.events = events

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self.events)

    @property
    def start_ns(self) -> int:
        """Start of the first event."""
        return int(self.events.start[0])

    @property
    def end_ns(self) -> int:
        """End of the event that ends last."""
        return int((self.events.start + self.events.duration).max())

    def at(self, numbers: Int64s) -> EventBlock:
        """Return events by number."""
        return self.events.take(numbers)

    def block(self, first: int, last: int) -> EventBlock:
        """Return a range of events without copying."""
        return self.events.take(slice(first, last))

    def parts(self) -> tuple[Part, ...]:
        """Return everything, once."""
        return (Part(1, self.events),)

    def first_from(self, times: Int64s) -> Int64s:
        """Return the number of the first event that starts at each time or later."""
        first: Int64s = np.searchsorted(self.events.start, times, side="left")
        return first

    @cached_property
    def _busy(self) -> BusyIndex:
        return BusyIndex(self.events.start, self.events.duration)

    def busy_between(self, edges: Int64s) -> Int64s:
        """Return the busy nanoseconds between neighbouring edges."""
        return self._busy.between(edges)

    @cached_property
    def _latest(self) -> Int64s:
        return latest_ends(self.events.start + self.events.duration)

    def latest(self, numbers: Int64s) -> Int64s:
        """Return which event up to each one ends last."""
        return self._latest[numbers]

    @cached_property
    def _pyramid(self) -> list[Int64s]:
        """Level l: the longest event of every block of 16**l."""
        duration = self.events.duration
        levels: list[Int64s] = [np.arange(self.count)]
        while len(levels[-1]) > _FAN_OUT:
            below = levels[-1]
            padded = np.concatenate((below, np.full(-len(below) % _FAN_OUT, below[-1])))
            blocks = padded.reshape(-1, _FAN_OUT)
            longest = np.argmax(duration[blocks], axis=1)
            levels.append(blocks[np.arange(len(blocks)), longest])
        return levels

    def longest(self, bounds: Int64s) -> Int64s:
        """Return the longest event of each range between neighbouring bounds, or NO_EVENT."""
        ranges = len(bounds) - 1
        found: Int64s = np.full(ranges, NO_EVENT, dtype=np.int64)
        first, last = int(bounds[0]), int(bounds[-1])
        if first == last:
            return found
        candidates = self._candidates(first, last, ranges)
        within: Int64s = np.searchsorted(candidates, bounds)
        counts = np.diff(within)
        some = np.flatnonzero(counts)
        if len(some):
            duration = self.events.duration[candidates]
            longest = np.maximum.reduceat(duration, within[some])
            inside = np.arange(within[some[0]], within[some[-1] + 1])
            equal = inside[duration[inside] == np.repeat(longest, counts[some])]
            cell: Int64s = np.searchsorted(within, equal, side="right") - 1
            found[cell[::-1]] = candidates[equal[::-1]]
        lost = (found == NO_EVENT) & (np.diff(bounds) > 0)
        found[lost] = bounds[:-1][lost]
        return found

    def _candidates(self, first: int, last: int, ranges: int) -> Int64s:
        level, size = 0, 1
        while (last - first) // size > _CANDIDATES_PER_RANGE * ranges and level < len(self._pyramid) - 1:
            level, size = level + 1, size * _FAN_OUT
        chosen = self._pyramid[level][first // size : (last - 1) // size + 1]
        return chosen[(chosen >= first) & (chosen < last)]

    def of_actions(self, wanted: Mask) -> Int64s:
        """Return the numbers of the events whose action is wanted."""
        return np.flatnonzero(wanted[self.events.action])

    def between(self, from_ns: int, to_ns: int) -> FlatEvents:
        """Return the events that touch a stretch of time."""
        events = self.events
        return FlatEvents(events.take((events.start <= to_ns) & (events.start + events.duration >= from_ns)))

    def of_executions(self, wanted: ExecutionFilter) -> FlatEvents:
        """Return the events of the chosen executions."""
        events = self.events
        return FlatEvents(events.take(wanted.chosen(events.model, events.execution, events.start)))


def latest_ends(end: Int64s) -> Int64s:
    """Return by event which event up to it ends last."""
    if len(end) == 0:
        return np.zeros(0, dtype=np.int64)
    latest = np.maximum.accumulate(end)
    new = np.concatenate(([True], latest[1:] > latest[:-1]))
    return np.maximum.accumulate(np.where(new, np.arange(len(end)), 0))
