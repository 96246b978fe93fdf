"""The curves of processes: executions a second and percentiles of their latency, by second and by minute."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.dashboard.machine_history import (
    LATENCIES,
    SLOTS,
    HistorySlot,
    MachineHistory,
    Measure,
    ProcessHistories,
)
from neurontools.machine.snapshot import LATENCY_BUCKETS, ProcessState, Snapshot

MonitoredMachine = Callable[..., Snapshot]
Process = Callable[..., ProcessState]
KEY = (7, 1)


def fed(*snapshots: Snapshot) -> ProcessHistories:
    histories = ProcessHistories()
    for before, after in pairwise(snapshots):
        histories.add(before, after)
    return histories


def means(slots: tuple[HistorySlot | None, ...]) -> list[float | None]:
    return [slot and round(slot.mean, 6) for slot in slots]


@pytest.fixture
def doing(machine_at: MonitoredMachine, process_at: Process) -> Callable[..., Snapshot]:
    """The machine at a second, with process 7 having executed so often, each time in this bucket of latency."""

    def at(second: float, done: int, bucket: int = 20, pid: int = 7) -> Snapshot:
        return machine_at(second, process_at(pid, statuses=((0, done),), bucket=bucket))

    return at


def test_executions_are_a_rate_and_latency_a_gap_where_nothing_was_executed(doing: MonitoredMachine) -> None:
    found = fed(doing(0, 5), doing(1, 15), doing(2, 15), doing(3, 40))
    assert means(found.minute(KEY, Measure.EXECUTIONS))[-4:] == [None, 10.0, 0.0, 25.0]
    latency = means(found.minute(KEY, Measure.P99))
    assert latency[-4] is None
    assert latency[-2] is None
    assert 0.001 < (latency[-1] or 0) < 0.0015


def test_a_busy_machine_does_not_count_what_was_done_before_it_was_looked_at(doing: MonitoredMachine) -> None:
    found = fed(doing(0, 1_000_000), doing(1, 1_000_001))
    assert means(found.minute(KEY, Measure.EXECUTIONS))[-1] == 1.0


def test_a_new_process_counts_from_its_begin_and_an_ended_process_is_forgotten(
    doing: MonitoredMachine, machine_at: MonitoredMachine
) -> None:
    histories = fed(machine_at(0), machine_at(1), doing(2, 8))
    assert means(histories.minute(KEY, Measure.EXECUTIONS))[-1] == 8.0
    histories.add(doing(2, 8), machine_at(3))
    assert histories.minute(KEY, Measure.EXECUTIONS) == (None,) * SLOTS
    assert histories.hour(KEY, Measure.P50) == (None,) * SLOTS


def test_a_slow_interval_belongs_to_all_of_its_seconds_and_minutes(doing: MonitoredMachine) -> None:
    found = fed(doing(0, 0), doing(150, 300))
    assert means(found.minute(KEY, Measure.EXECUTIONS)) == [2.0] * SLOTS
    assert means(found.hour(KEY, Measure.EXECUTIONS))[-4:] == [None, None, 2.0, 2.0]


def test_a_fast_screen_is_sampled_once_a_second(doing: MonitoredMachine) -> None:
    found = fed(*(doing(tenth / 10, tenth) for tenth in range(31)))
    assert means(found.minute(KEY, Measure.EXECUTIONS))[-3:] == [10.0, 10.0, 10.0]


def test_a_minutes_percentile_is_over_all_its_executions_and_its_peak_is_the_worst_second(
    machine_at: MonitoredMachine, process_at: Process
) -> None:
    def at(second: int) -> Snapshot:
        quick, slow = 100 * min(second, 29), 100 * max(0, second - 29)
        process = process_at(7, statuses=((0, quick + slow),))
        counts = [0] * len(process.latency_counts)
        counts[20], counts[40] = quick, slow
        return machine_at(second, replace(process, latency_counts=tuple(counts)))

    (slot,) = (slot for slot in fed(*map(at, range(31))).hour(KEY, Measure.P50) if slot)
    assert slot.mean < 0.002  # 2,900 of 3,000 executions were quick
    assert slot.peak > 1.0  # but in the last second all were slow


def test_the_history_of_a_machine_has_them_and_another_machine_begins_anew(
    doing: MonitoredMachine, machine_at: MonitoredMachine
) -> None:
    history = MachineHistory()
    history.add(doing(0, 0), doing(1, 3), {})
    assert means(history.processes.minute(KEY, Measure.EXECUTIONS))[-1] == 3.0
    other = machine_at(2).devices[:1]
    history.add(machine_at(2, devices=other), machine_at(3, devices=other), {})
    assert history.processes.minute(KEY, Measure.EXECUTIONS) == (None,) * SLOTS


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 90), st.integers(0, 50), st.integers(0, 63)), min_size=1, max_size=40
    )
)
def test_percentiles_are_in_order_and_rates_never_negative(
    machine_at: MonitoredMachine, process_at: Process, steps: list[tuple[int, int, int]]
) -> None:
    counts = [0] * LATENCY_BUCKETS
    now = 0
    snapshots = [machine_at(0, process_at(7))]
    for seconds, done, bucket in steps:
        now += seconds
        counts[bucket] += done
        process = process_at(7, statuses=((0, sum(counts)),))
        snapshots.append(machine_at(now, replace(process, latency_counts=tuple(counts))))
    histories = fed(*snapshots)
    for slots_of in (histories.minute, histories.hour):
        for column in zip(*(slots_of(KEY, measure) for measure in LATENCIES), strict=True):
            assert len({slot is None for slot in column}) == 1
            values = [slot.mean for slot in column if slot]
            assert values == sorted(values)
        rates = [slot for slot in slots_of(KEY, Measure.EXECUTIONS) if slot]
        assert rates
        assert all(0 <= slot.mean <= slot.peak * 1.001 for slot in rates)
