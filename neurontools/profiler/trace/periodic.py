"""Rows of a modelled engine: executions of programs one after another on a core, each with the program's events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.trace.intervals import BusyIndex
from neurontools.profiler.trace.rows import NO_EVENT, EventBlock, Part, RowEvents, latest_ends

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask
    from neurontools.profiler.trace.rows import ExecutionFilter


@dataclass(frozen=True, slots=True)
class Executions:
    """The executions of one core in order of time; they never overlap.

    Args:
        start: modelled start, nanoseconds since the first event of the trace.
        model: number in the table of the trace.
        number: the model's executions count from 1.
        status: NRT status.
    """

    start: Int64s
    model: Codes
    number: Codes
    status: Codes

    def take(self, chosen: Mask | Int64s) -> Executions:
        """Return some of them."""
        return Executions(self.start[chosen], self.model[chosen], self.number[chosen], self.status[chosen])


@dataclass(frozen=True, slots=True)
class Template:
    """What an execution of a program does on one row: starts after its own start, in order; `action` as in the trace.

    `key` is the same for the rows of one program.
    """

    start: Int64s
    duration: Int64s
    action: Codes
    key: object

    def take(self, chosen: Mask, key: object) -> Template:
        """Return some of its events."""
        return Template(self.start[chosen], self.duration[chosen], self.action[chosen], key)


class PeriodicEvents(RowEvents):
    """The events of executions.

    Args:
        executions: of the core.
        template: by execution, a number in `templates`.
        templates: what executions do on this row.
    """

    def __init__(self, executions: Executions, template: Int64s, templates: Sequence[Template]) -> None:
        counts = np.array([len(each.start) for each in templates], dtype=np.int64)
        some = counts[template] > 0
        if not some.all():
            executions, template = executions.take(some), template[some]
        self._executions = executions
        self._template = template
        self._templates = tuple(templates)
        self._before: Int64s = np.concatenate(([0], np.cumsum(counts[template])))
        self._base: Int64s = np.concatenate(([0], np.cumsum(counts)))[:-1]

    @property
    def count(self) -> int:
        """Number of events."""
        return int(self._before[-1])

    @property
    def start_ns(self) -> int:
        """Start of the first event."""
        return int(self._executions.start[0] + self._templates[self._template[0]].start[0])

    @property
    def end_ns(self) -> int:
        """End of the event that ends last."""
        last = self._templates[self._template[-1]]
        return int(self._executions.start[-1] + (last.start + last.duration).max())

    @cached_property
    def _start(self) -> Int64s:
        """Starts of the templates' events, one template after another; `_base` is where each one begins."""
        return np.concatenate([each.start for each in self._templates])

    @cached_property
    def _duration(self) -> Int64s:
        return np.concatenate([each.duration for each in self._templates])

    @cached_property
    def _action(self) -> Codes:
        return np.concatenate([each.action for each in self._templates])

    def at(self, numbers: Int64s) -> EventBlock:
        """Return events by number."""
        execution, scheduled = self._places(numbers)
        runs = self._executions.take(execution)
        return EventBlock(
            start=runs.start + self._start[scheduled],
            duration=self._duration[scheduled],
            action=self._action[scheduled],
            model=runs.model,
            execution=runs.number,
            status=runs.status,
            value=np.zeros(len(scheduled), dtype=np.int64),
        )

    def parts(self) -> tuple[Part, ...]:
        """Return the events of each template that occurs, as many times as it does."""
        weights = np.bincount(self._template, minlength=len(self._templates))
        firsts = {
            int(number): int(index)
            for number, index in zip(*np.unique(self._template, return_index=True), strict=True)
        }
        parts = []
        for number, weight in enumerate(weights.tolist()):
            if weight:
                base = int(self._before[firsts[number]])
                block = self.block(base, base + len(self._templates[number].start))
                parts.append(Part(weight, block, self._templates[number].key))
        return tuple(parts)

    def schedule(self) -> tuple[Executions, Int64s, tuple[Template, ...], Int64s]:
        """Return executions, numbers of their templates, all templates, and numbers of the executions' first events."""
        return self._executions, self._template, self._templates, self._before[:-1]

    def first_from(self, times: Int64s) -> Int64s:
        """Return the number of the first event that starts at each time or later."""
        run = np.searchsorted(self._executions.start, times, side="right") - 1
        at = np.maximum(run, 0)
        first = self._before[at].copy()
        for number, chosen in self._by_template(at):
            offset = times[chosen] - self._executions.start[at[chosen]]
            first[chosen] += np.searchsorted(self._templates[number].start, offset, side="left")
        return np.where(run < 0, 0, first)

    def busy_between(self, edges: Int64s) -> Int64s:
        """Return the busy nanoseconds between neighbouring edges."""
        run = np.searchsorted(self._executions.start, edges, side="right") - 1
        at = np.maximum(run, 0)
        busy = self._busy_before[at]
        for number, chosen in self._by_template(at):
            busy[chosen] += self._busy[number].until(edges[chosen] - self._executions.start[at[chosen]])
        return np.diff(np.where(run < 0, 0, busy))

    def _by_template(self, runs: Int64s) -> Iterator[tuple[int, Mask]]:
        """Yield the templates of executions, and which of the executions have it."""
        template = self._template[runs]
        for number in np.unique(template).tolist():
            yield number, template == number

    @cached_property
    def _busy(self) -> list[BusyIndex]:
        return [BusyIndex(each.start, each.duration) for each in self._templates]

    @cached_property
    def _busy_before(self) -> Int64s:
        totals = np.array([index.total_ns for index in self._busy], dtype=np.int64)
        return np.concatenate(([0], np.cumsum(totals[self._template])))

    def longest(self, bounds: Int64s) -> Int64s:
        """Return the longest event of each range between neighbouring bounds, or NO_EVENT."""
        found: Int64s = np.full(len(bounds) - 1, NO_EVENT, dtype=np.int64)
        some = np.flatnonzero(np.diff(bounds) > 0)
        if len(some) == 0:
            return found
        first, last = bounds[some], bounds[some + 1] - 1
        one, other = self._run_of(first), self._run_of(last)
        same = one == other
        # In the first execution of a range up to its end, in the last from its start, and all executions between.
        until = np.where(same, last, self._before[one + 1] - 1)
        best = self._longest_within(one, first, until)
        later = np.flatnonzero(~same)
        if len(later):
            best[later] = self._longer(
                best[later], self._longest_within(other[later], self._before[other[later]], last[later])
            )
            wide = later[other[later] - one[later] > 1]
            if len(wide):
                best[wide] = self._longer(best[wide], self._longest_of_runs(one[wide] + 1, other[wide]))
        found[some] = best
        return found

    def _longest_within(self, run: Int64s, first: Int64s, last: Int64s) -> Int64s:
        """Return the longest event from `first` to `last` (inclusive), all of one execution each."""
        base = self._base[self._template[run]] - self._before[run]
        left, right = first + base, last + base
        table = self._longest_table
        level = np.frexp(right - left + 1)[1].astype(np.int64) - 1
        one, other = table[level, left], table[level, right + 1 - (1 << level)]
        return np.where(self._duration[other] > self._duration[one], other, one) - base

    def _longest_of_runs(self, first: Int64s, last: Int64s) -> Int64s:
        """Return the longest event of the executions from `first` to `last`, exclusive; at least one each."""
        highest = self._highest_runs
        place = np.searchsorted(highest, first)
        run: Int64s = highest[np.minimum(place, len(highest) - 1)]
        for index in np.flatnonzero((run < first) | (run >= last)).tolist():
            begin, end = int(first[index]), int(last[index])
            run[index] = begin + int(np.argmax(self._peaks[self._template[begin:end]]))
        last_event = self._before[run + 1] - 1
        return self._longest_within(run, self._before[run], last_event)

    def _longer(self, one: Int64s, other: Int64s) -> Int64s:
        return np.where(self.at(other).duration > self.at(one).duration, other, one)

    @cached_property
    def _peaks(self) -> Int64s:
        """Longest event of every template."""
        return np.array([each.duration.max(initial=0) for each in self._templates], dtype=np.int64)

    @cached_property
    def _highest_runs(self) -> Int64s:
        """The executions with the longest event of all."""
        peaks = self._peaks[self._template]
        return np.flatnonzero(peaks == peaks.max())

    @cached_property
    def _longest_table(self) -> Int64s:
        """Row l: the longest of the 2**l events from each place on (a sparse table)."""
        count = len(self._duration)
        levels: list[Int64s] = [np.arange(count, dtype=np.int64)]
        longest_template = max(len(each.start) for each in self._templates)
        while 1 << len(levels) <= longest_template:
            below, step = levels[-1], 1 << (len(levels) - 1)
            other = below[np.minimum(np.arange(count) + step, count - 1)]
            levels.append(np.where(self._duration[other] > self._duration[below], other, below))
        return np.stack(levels)

    def latest(self, numbers: Int64s) -> Int64s:
        """Return which event up to each one ends last."""
        _, place = self._places(numbers)
        return self._latest[place] - (place - numbers)

    @cached_property
    def _latest(self) -> Int64s:
        latest = [
            latest_ends(each.start + each.duration) + base
            for each, base in zip(self._templates, self._base.tolist(), strict=True)
        ]
        return np.concatenate(latest)

    def of_actions(self, wanted: Mask) -> Int64s:
        """Return the numbers of the events whose action is wanted."""
        hits = [np.flatnonzero(wanted[each.action]) for each in self._templates]
        counts = np.array([len(each) for each in hits], dtype=np.int64)[self._template]
        first = np.concatenate([[0], np.cumsum(counts)])
        found: Int64s = np.repeat(self._before[:-1], counts)
        position = np.arange(first[-1]) - np.repeat(first[:-1], counts)
        starts = np.concatenate(([0], np.cumsum([len(each) for each in hits])))[:-1]
        return found + np.concatenate(hits)[np.repeat(starts[self._template], counts) + position]

    def between(self, from_ns: int, to_ns: int) -> PeriodicEvents:
        """Return the events that touch a stretch of time; executions at its edges lose some."""
        spans = np.array(
            [(each.start + each.duration).max(initial=0) for each in self._templates], dtype=np.int64
        )
        start = self._executions.start
        touched = (start <= to_ns) & (start + spans[self._template] >= from_ns)
        executions, template = self._executions.take(touched), self._template[touched].copy()
        templates = list(self._templates)
        cut = (executions.start < from_ns) | (executions.start + spans[template] > to_ns)
        for index in np.flatnonzero(cut).tolist():
            each, begun = templates[template[index]], int(executions.start[index])
            kept = (begun + each.start <= to_ns) & (begun + each.start + each.duration >= from_ns)
            template[index] = len(templates)
            templates.append(each.take(kept, (each.key, "cut", begun)))
        return PeriodicEvents(executions, template, templates)

    def of_executions(self, wanted: ExecutionFilter) -> PeriodicEvents:
        """Return the events of the chosen executions."""
        runs = self._executions
        chosen = wanted.chosen(runs.model, runs.number, runs.start)
        return PeriodicEvents(runs.take(chosen), self._template[chosen], self._templates)

    def _run_of(self, numbers: Int64s) -> Int64s:
        runs: Int64s = np.searchsorted(self._before, numbers, side="right") - 1
        return runs

    def _places(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return the executions of events, and where the events are among those of all templates."""
        run = self._run_of(numbers)
        return run, self._base[self._template[run]] + numbers - self._before[run]
