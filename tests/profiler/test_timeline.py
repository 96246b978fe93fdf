from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neurontools.base import units
from neurontools.errors import UsageError
from neurontools.profiler.capture.format import Track
from neurontools.profiler.trace.rows import EventBlock, FlatEvents
from neurontools.profiler.trace.timeline import (
    NO_EVENT,
    TimelineRow,
    TraceTimeline,
    Viewport,
    format_tick,
    tick_step,
)
from neurontools.profiler.trace.trace import Trace, TraceRow

if TYPE_CHECKING:
    from collections.abc import Sequence

EVENTS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 300)), min_size=1, max_size=60).map(sorted)
VIEWS = st.tuples(st.integers(0, 3200), st.integers(0, 3200), st.integers(1, 50))


def row_of(events: Sequence[tuple[int, int]]) -> TimelineRow:
    start = np.array([event[0] for event in events], dtype=np.int64)
    duration = np.array([event[1] for event in events], dtype=np.int64)
    zeros = np.zeros(len(events), dtype=np.uint32)
    block = EventBlock(start, duration, zeros, zeros, zeros, zeros, zeros.astype(np.int64))
    return TimelineRow(TraceRow(0, 1, 0, 0, Track.TENSOR, 0, len(events), FlatEvents(block)))


def viewport(start: int, span: int, columns: int) -> Viewport:
    return Viewport(start, max(span, columns), 10_000, columns)


@given(EVENTS, VIEWS)
def test_busy_time_of_every_cell_equals_brute_force(
    events: list[tuple[int, int]], at: tuple[int, int, int]
) -> None:
    edges = viewport(*at).edges()
    cells = row_of(events).cells(edges)
    busy = {ns for start, duration in events for ns in range(start, start + duration)}
    for cell, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        assert cells.busy_ns[cell] == len(busy & set(range(first, last)))


@given(EVENTS, VIEWS)
def test_something_is_drawn_wherever_something_happened(
    events: list[tuple[int, int]], at: tuple[int, int, int]
) -> None:
    edges = viewport(*at).edges()
    cells = row_of(events).cells(edges)
    for cell, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        touching = [
            number
            for number, (start, duration) in enumerate(events)
            if first <= start < last or start < first < start + duration
        ]
        assert (cells.heights()[cell] > 0) == bool(touching)
        assert (cells.event[cell] in touching) if touching else cells.event[cell] == NO_EVENT
        assert (cells.heights()[cell] == 8) == (cells.busy_ns[cell] == last - first)


@given(EVENTS, VIEWS)
@example([(0, 0)] * 16 + [(0, 1), (1, 2)], (0, 0, 1))
def test_a_cell_names_the_longest_event_that_starts_in_it(
    events: list[tuple[int, int]], at: tuple[int, int, int]
) -> None:
    edges = viewport(*at).edges()
    found = row_of(events).cells(edges).event.tolist()
    for cell, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        inside = [duration for start, duration in events if first <= start < last]
        if inside and first <= events[found[cell]][0] < last:
            assert events[found[cell]][1] == max(inside)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_with_many_events_a_cell_still_names_one_of_its_own(seed: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    starts = np.sort(random.integers(0, 50_000, 900))
    events = list(zip(starts.tolist(), random.integers(1, 60, 900).tolist(), strict=True))
    edges = viewport(0, 50_100, columns).edges()
    found = row_of(events).cells(edges).event.tolist()
    for number, first, last in zip(found, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = [duration for start, duration in events if first <= start < last]
        start, duration = events[number]
        assert start < last
        assert start + duration > first
        assert duration >= sorted(inside)[len(inside) // 2]


@given(
    st.integers(0, 10**12),
    st.integers(1, 200),
    st.lists(st.tuples(st.sampled_from("zoPpgfr"), st.floats(0, 1)), max_size=30),
)
def test_the_window_stays_inside_the_profile(
    total_ns: int, columns: int, moves: list[tuple[str, float]]
) -> None:
    view = Viewport.fit(total_ns, columns)
    for move, share in moves:
        at_ns = view.start_ns + int(share * view.span_ns)
        match move:
            case "z":
                view = view.zoomed(0.5, at_ns)
            case "o":
                view = view.zoomed(2, at_ns)
            case "P" | "p":
                view = view.panned(share if move == "P" else -share)
            case "g":
                view = view.centred(int(share * total_ns))
            case "f":
                view = Viewport.fit(total_ns, columns)
            case _:
                view = view.resized(1 + int(share * 300))
        edges = view.edges()
        assert view.start_ns >= 0
        assert view.end_ns <= max(total_ns, view.columns)
        assert edges[0] == view.start_ns
        assert edges[-1] == view.end_ns
        assert np.all(np.diff(edges) >= 1)


@given(st.integers(1, 10**10), st.integers(1, 10**12))
def test_zooming_in_keeps_the_place_under_the_cursor(at_ns: int, total_ns: int) -> None:
    at_ns %= total_ns
    view = Viewport.fit(total_ns, 80)
    for _ in range(20):
        view = view.zoomed(0.5, at_ns)
    assert view.start_ns <= at_ns <= view.end_ns


def test_the_event_at_a_time_is_the_running_one_else_the_next() -> None:
    row = row_of([(10, 100), (20, 5), (300, 10)])
    assert [row.event_at(time) for time in (0, 12, 22, 50, 200, 305, 999)] == [0, 0, 0, 0, 2, 2, 2]


def test_search_finds_events_in_order_of_time(trace: Trace) -> None:
    found = TraceTimeline(trace).search("MM|relu")
    events = [trace.event(number) for number in found.events.tolist()]
    assert {event.action.name for event in events} == {"aten.mm", "aten.relu"}
    assert [event.start for event in events] == found.start.tolist() == sorted(found.start.tolist())
    assert len(found) == 2 * 5 * 3


def test_a_bad_search_pattern_is_explained(trace: Trace) -> None:
    with pytest.raises(UsageError, match="invalid regular expression"):
        TraceTimeline(trace).search("(")


@given(st.integers(0, 10**15))
def test_a_time_that_is_shown_can_be_typed_again(ns: int) -> None:
    again = units.parse_duration_ns(units.format_ns(ns))
    assert abs(again - ns) <= max(1, ns // 1000)


@given(st.integers(1, 10**12), st.integers(1, 20), st.integers(0, 10**12))
def test_ticks_are_round_few_and_differ_from_their_neighbours(
    span_ns: int, ticks: int, start_ns: int
) -> None:
    step = tick_step(span_ns, ticks)
    assert span_ns <= step * ticks
    first = -(-start_ns // step) * step
    assert format_tick(first, step) != format_tick(first + step, step)
    assert units.parse_duration_ns(format_tick(first, step)) == first


@pytest.mark.parametrize("text", ["", "soon", "1.2.3ms", "5 hours", "1e3"])
def test_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid duration"):
        units.parse_duration_ns(text, needs_unit=True)
