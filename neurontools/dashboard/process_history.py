"""What every process did over the last minute and the last hour: executions a second, percentiles of their latency.

Fed with the snapshots that a dashboard has anyway, it looks once a second at most; a process on which nothing happened
costs next to nothing. A process takes 4 KiB, one that ended is forgotten.
"""

from __future__ import annotations

from array import array
from enum import StrEnum
from math import isnan, nan
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from neurontools.dashboard.history import MINUTE_NS, SECOND_NS, SLOTS, Slot
from neurontools.machine.view import process_key
from neurontools.monitor.latency import quantiles_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.snapshot import ProcessState, Snapshot
    from neurontools.machine.view import ProcessKey

_SHORTEST_NS = SECOND_NS // 2
_FLOAT = "f"


class Measure(StrEnum):
    """What is remembered of a process: executions a second, and seconds of wall time of an execution."""

    EXECUTIONS = "executions"
    P50 = "p50"
    P90 = "p90"
    P99 = "p99"
    P100 = "p100"


LATENCIES = {Measure.P50: 50, Measure.P90: 90, Measure.P99: 99, Measure.P100: 100}
"""The percentiles of the latency, in percent."""

_MEASURES = tuple(Measure)
_PERCENTS = tuple(LATENCIES.values())
_NOTHING = (0.0, *[nan] * len(LATENCIES))


class _Totals(NamedTuple):
    """Executions of a process since it registered, and the histogram of their latency."""

    executions: int
    latency_counts: Sequence[int]


class ProcessHistories:
    """The histories of the processes that use a device."""

    def __init__(self) -> None:
        self._courses: dict[ProcessKey, _Course] = {}
        self._sampled_ns: int | None = None

    def add(self, before: Snapshot, after: Snapshot) -> None:
        """Take in the interval between two snapshots of one machine."""
        if self._sampled_ns is None or after.taken_ns < self._sampled_ns:
            self._sampled_ns = before.taken_ns
            self._courses = {process_key(one): _Course(one) for one in before.processes if one.uses_device}
        since_ns, now_ns = self._sampled_ns, after.taken_ns
        if now_ns - since_ns < _SHORTEST_NS or now_ns // SECOND_NS == since_ns // SECOND_NS:
            return
        courses = {}
        for process in after.processes:
            if process.uses_device:
                key = process_key(process)
                course = courses[key] = self._courses.get(key) or _Course()
                course.add(process, since_ns, now_ns)
        self._courses = courses
        self._sampled_ns = now_ns

    def minute(self, process: ProcessKey, measure: Measure) -> tuple[Slot | None, ...]:
        """Return the seconds of the last minute, oldest first, None where nothing was executed or seen."""
        course = self._courses.get(process)
        return course.seconds(measure) if course else (None,) * SLOTS

    def hour(self, process: ProcessKey, measure: Measure) -> tuple[Slot | None, ...]:
        """Return the minutes of the last hour, oldest first.

        The mean of a percentile's slot is the percentile over the whole minute, its peak the highest second's.
        """
        course = self._courses.get(process)
        return course.minutes(measure) if course else (None,) * SLOTS


class _Ring:
    """The last slots of some columns of numbers; nan is nothing."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._numbers = array(_FLOAT, [nan]) * (columns * SLOTS)
        self._newest = -1

    def put(self, slot: int, numbers: Sequence[float]) -> None:
        """Fill a slot that is not older than the newest; those that are passed over are empty."""
        for passed in range(max(self._newest + 1, slot - SLOTS + 1), slot):
            self._write(passed, [nan] * self._columns)
        self._write(slot, numbers)
        self._newest = slot

    def column(self, index: int) -> list[float]:
        """Return a column, oldest first."""
        oldest = self._newest + 1
        return [self._numbers[slot % SLOTS * self._columns + index] for slot in range(oldest, oldest + SLOTS)]

    def _write(self, slot: int, numbers: Sequence[float]) -> None:
        at = slot % SLOTS * self._columns
        self._numbers[at : at + self._columns] = array(_FLOAT, numbers)


class _Course:
    """One process.

    Args:
        process: what it had done when looking began, None for one that came since.
    """

    def __init__(self, process: ProcessState | None = None) -> None:
        self._seconds = _Ring(len(_MEASURES))
        self._minutes = _Ring(2 * len(_MEASURES))
        self._process = process
        self._totals = _Totals(0, ()) if process is None else _totals(process)
        self._minute: int | None = None
        self._totals_ns = 0
        self._begin = self._totals
        self._begin_ns = 0
        self._peaks: tuple[float, ...] = _NOTHING

    def add(self, process: ProcessState, since_ns: int, now_ns: int) -> None:
        """Take in what it did between two moments."""
        totals = self._totals if process is self._process else _totals(process)
        values = _measured(self._totals, totals, now_ns - since_ns)
        second, minute = now_ns // SECOND_NS, now_ns // MINUTE_NS
        for each in range(max(since_ns // SECOND_NS + 1, second - SLOTS + 1), second + 1):
            self._seconds.put(each, values)
        if minute != self._minute:
            self._write_minute()
            for each in range(max(since_ns // MINUTE_NS + 1, minute - SLOTS + 1), minute):
                self._minutes.put(each, (*values, *values))
            self._minute, self._begin, self._begin_ns, self._peaks = minute, self._totals, since_ns, values
        elif values is not _NOTHING:
            self._peaks = tuple(map(_larger, self._peaks, values))
        self._process, self._totals, self._totals_ns = process, totals, now_ns

    def seconds(self, measure: Measure) -> tuple[Slot | None, ...]:
        """Return the last minute."""
        found = self._seconds.column(_MEASURES.index(measure))
        return tuple(None if isnan(value) else Slot(value, value) for value in found)

    def minutes(self, measure: Measure) -> tuple[Slot | None, ...]:
        """Return the last hour."""
        self._write_minute()
        at = _MEASURES.index(measure)
        means, peaks = self._minutes.column(at), self._minutes.column(at + len(_MEASURES))
        return tuple(
            None if isnan(mean) else Slot(mean, peak) for mean, peak in zip(means, peaks, strict=True)
        )

    def _write_minute(self) -> None:
        # The whole minute so far, not the mean of its seconds' percentiles: that is no percentile of anything.
        if self._minute is not None:
            whole = _measured(self._begin, self._totals, self._totals_ns - self._begin_ns)
            self._minutes.put(self._minute, (*whole, *self._peaks))


def _totals(process: ProcessState) -> _Totals:
    return _Totals(sum(use.executions for use in process.cores), process.latency_counts)


def _measured(before: _Totals, after: _Totals, interval_ns: int) -> tuple[float, ...]:
    if after is before:
        return _NOTHING
    executions_s = max(0, after.executions - before.executions) * 1e9 / interval_ns
    counts = after.latency_counts
    if before.latency_counts:
        counts = list(map(sub, counts, before.latency_counts))
        if min(counts) < 0:
            counts = [max(0, count) for count in counts]
    if not any(counts):
        return executions_s, *_NOTHING[1:]
    return executions_s, *quantiles_s(counts, _PERCENTS)


def _larger(one: float, other: float) -> float:
    return other if other > one or isnan(one) else one
