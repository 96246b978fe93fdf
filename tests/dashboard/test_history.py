"""History keeps the last minute and the last hour, however often it is fed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.dashboard.machine_history import (
    MINUTE_NS,
    SECOND_NS,
    SLOTS,
    HistorySlot,
    SampledSlots,
    SlotHistory,
    summary,
)


def test_a_slot_is_the_mean_and_the_peak_of_its_samples() -> None:
    ring = SampledSlots(2, SECOND_NS, slots=3)
    for now_ns, values in ((0, (0.0, 1.0)), (SECOND_NS // 2, (0.5, 1.0)), (SECOND_NS, (0.25, 0.0))):
        ring.add(now_ns, values)
    assert ring.series(0) == (None, HistorySlot(0.25, 0.5), HistorySlot(0.25, 0.25))
    assert ring.series(1) == (None, HistorySlot(1.0, 1.0), HistorySlot(0.0, 0.0))


def test_time_without_samples_is_a_gap_and_not_a_zero() -> None:
    ring = SampledSlots(1, SECOND_NS, slots=4)
    ring.add(0, (1.0,))
    ring.add(2 * SECOND_NS, (0.5,))
    assert ring.series(0) == (None, HistorySlot(1.0, 1.0), None, HistorySlot(0.5, 0.5))
    ring.add(1000 * SECOND_NS, (0.25,))
    assert ring.series(0) == (None, None, None, HistorySlot(0.25, 0.25))


def test_a_sample_from_the_past_changes_nothing() -> None:
    ring = SampledSlots(1, SECOND_NS, slots=2)
    ring.add(5 * SECOND_NS, (1.0,))
    ring.add(4 * SECOND_NS, (0.0,))
    assert ring.series(0) == (None, HistorySlot(1.0, 1.0))


def test_a_sample_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="3 values for 2 series"):
        SampledSlots(2, SECOND_NS).add(0, (1.0, 2.0, 3.0))


def test_summary_is_over_what_was_sampled() -> None:
    assert summary([None, None]) is None
    assert summary([None, HistorySlot(0.2, 0.9), HistorySlot(0.4, 0.5)]) == HistorySlot(
        pytest.approx(0.3), 0.9
    )


shares = st.floats(0, 1, allow_nan=False, width=32)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 200), shares, shares), min_size=1, max_size=150))
def test_the_newest_slots_hold_what_was_fed(steps: list[tuple[int, float, float]]) -> None:
    history = SlotHistory(2)
    fed: dict[int, list[float]] = {}
    now_ns = 0
    for step, first, second in steps:
        now_ns += step * SECOND_NS // 100
        history.add(now_ns, (first, second))
        fed.setdefault(now_ns // SECOND_NS, []).append(first)
    newest = now_ns // SECOND_NS
    slots = history.minute(0)
    assert len(slots) == SLOTS
    for back, slot in enumerate(reversed(slots)):
        samples = fed.get(newest - back)
        if samples is None:
            assert slot is None
        else:
            assert slot is not None
            assert slot.mean == pytest.approx(sum(samples) / len(samples), abs=1e-6)
            assert slot.peak == pytest.approx(max(samples), abs=1e-6)
    assert len(history.hour(1)) == SLOTS
    assert sum(slot is not None for slot in history.hour(1)) == len(
        {second * SECOND_NS // MINUTE_NS for second in fed}
    )
