"""Rows of executions answer as the same events in flat columns do."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neurontools.profiler.trace.intervals import LaneChooser, busy_ns, lanes
from neurontools.profiler.trace.periodic import Executions, PeriodicEvents, Template
from neurontools.profiler.trace.rows import NO_EVENT, EventBlock, ExecutionFilter, FlatEvents, RowEvents

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask

PROGRAM_NS = 100
TEMPLATES = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=6).map(sorted),
    min_size=1,
    max_size=3,
).filter(any)
RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), min_size=1, max_size=12)
EDGES = st.lists(st.integers(-50, 2_000), min_size=2, max_size=20).map(sorted)


def make(templates: list[list[tuple[int, int]]], drawn: list[tuple[int, int]]) -> PeriodicEvents:
    """Executions with gaps, of programs that last 100 ns."""
    made, action = [], 0
    for key, events in enumerate(templates):
        start, duration = (np.array([event[at] for event in events], dtype=np.int64) for at in (0, 1))
        made.append(Template(start, duration, np.arange(action, action + len(events), dtype=np.uint32), key))
        action += len(events)
    start = np.cumsum([PROGRAM_NS + gap for _, gap in drawn]).astype(np.int64)
    kind = np.array([number % len(templates) for number, _ in drawn], dtype=np.int64)
    number = np.arange(1, len(drawn) + 1, dtype=np.uint32)
    runs = Executions(start, kind.astype(np.uint32), number, (number % 3).astype(np.uint32))
    return PeriodicEvents(runs, kind, made)


def flat(events: RowEvents) -> FlatEvents:
    return FlatEvents(events.block(0, events.count))


def same(one: EventBlock, other: EventBlock) -> None:
    for field in fields(EventBlock):
        assert getattr(one, field.name).tolist() == getattr(other, field.name).tolist(), field.name


class Odd(ExecutionFilter):
    def chosen(self, model: Codes, execution: Codes, start: Int64s) -> Mask:
        return execution % 2 == 1


@given(TEMPLATES, RUNS, EDGES)
def test_a_stretch_of_executions_is_as_busy_as_its_events(
    templates: list[list[tuple[int, int]]], drawn: list[tuple[int, int]], edges: list[int]
) -> None:
    row = make(templates, drawn)
    if row.count == 0:
        return
    other, times = flat(row), np.array(edges, dtype=np.int64)
    assert row.count == other.count
    assert (row.start_ns, row.end_ns) == (other.start_ns, other.end_ns)
    assert row.busy_between(times).tolist() == other.busy_between(times).tolist()
    assert row.first_from(times).tolist() == other.first_from(times).tolist()
    for time in edges:
        assert row.at_time(time) == other.at_time(time)
    everything = np.arange(row.count, dtype=np.int64)
    assert row.latest(everything).tolist() == other.latest(everything).tolist()


@given(TEMPLATES, RUNS, EDGES)
def test_the_longest_event_of_a_range_is_one_of_the_longest(
    templates: list[list[tuple[int, int]]], drawn: list[tuple[int, int]], edges: list[int]
) -> None:
    row = make(templates, drawn)
    bounds = np.clip(np.array(edges, dtype=np.int64), 0, row.count)
    found = row.longest(bounds).tolist()
    duration = row.block(0, row.count).duration.tolist()
    for first, last, longest in zip(bounds[:-1].tolist(), bounds[1:].tolist(), found, strict=True):
        if first == last:
            assert longest == NO_EVENT
        else:
            assert first <= longest < last
            assert duration[longest] == max(duration[first:last])


@given(TEMPLATES, RUNS, st.integers(-50, 2_000), st.integers(0, 1_000))
def test_parts_of_executions_are_parts_of_their_events(
    templates: list[list[tuple[int, int]]], drawn: list[tuple[int, int]], begin: int, length: int
) -> None:
    row = make(templates, drawn)
    if row.count == 0:
        return
    for one, other in (
        (row.between(begin, begin + length), flat(row).between(begin, begin + length)),
        (row.of_executions(Odd()), flat(row).of_executions(Odd())),
    ):
        assert one.count == other.count
        same(one.block(0, one.count), other.block(0, other.count))
        assert sum(part.weight * len(part.events) for part in one.parts()) == one.count
        busy = sum(part.weight * busy_ns(part.events.start, part.events.duration) for part in one.parts())
        assert busy == busy_ns(other.events.start, other.events.duration)
    wanted = np.arange(100) % 3 == 0
    assert row.of_actions(wanted).tolist() == flat(row).of_actions(wanted).tolist()


@given(TEMPLATES, RUNS, st.integers(1, 7))
def test_blocks_are_the_events_in_order_and_lanes_do_not_depend_on_their_size(
    templates: list[list[tuple[int, int]]], drawn: list[tuple[int, int]], size: int
) -> None:
    row = make(templates, drawn)
    blocks = list(row.blocks(size))
    whole = row.block(0, row.count)
    assert [start for block in blocks for start in block.start.tolist()] == whole.start.tolist()
    chooser = LaneChooser()
    chosen = [lane for block in blocks for lane in chooser.choose(block.start, block.duration).tolist()]
    ends: dict[int, int] = {}
    for lane, start, duration in zip(chosen, whole.start.tolist(), whole.duration.tolist(), strict=True):
        assert ends.get(lane, 0) <= start
        ends[lane] = start + duration
    assert max(chosen, default=0) == max(lanes(whole.start, whole.duration).tolist(), default=0)
