"""Faults on a synthetic core do what they do to a real program's executions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.machine.faults.kinds import KINDS, FaultKind
from neurontools.machine.faults.params import Hit
from neurontools.machine.pages.writer import CoreCounters
from neurontools.machine.snapshot import LATENCY_BUCKETS
from neurontools.scenario.faulted_core import FaultedCore

SECOND_NS = 1_000_000_000
USUAL = 20  # the bucket of 1 ms
QUICK = 13  # the bucket of 0.1 ms


def scripted(seconds, *, share=0.5, executions=10, flops=100, errors=False):
    """A core that executes ten times a second, half of the time."""
    count = int(executions * seconds)
    latency = tuple(count if bucket == USUAL else 0 for bucket in range(LATENCY_BUCKETS))
    busy_ns = round(share * seconds * SECOND_NS)
    failures = ((7, count - count // 3),) if errors else ()
    return CoreCounters(0, -1, busy_ns, count, int(flops * seconds), 0, failures, latency)


class Queries:
    """Answers in turn; the last one again and again."""

    def __init__(self, *hits, left=1000):
        self.hits, self.left, self.held, self.released = list(hits), left, True, 0

    def take(self, core):
        self.left -= 1
        return self.hits.pop(0) if len(self.hits) > 1 else self.hits[0]

    def holds(self, hit, core):
        return self.held

    def release(self, core):
        self.released += 1


def hit(kind, status=None, *, lasting=True, factor=2.0):
    lasting = lasting and kind is not FaultKind.HANG
    return Hit(1, kind, KINDS[kind].status if status is None else status, 0, 0, factor, None, lasting)


def core(timeout_s=600):
    return FaultedCore(0, scripted(0), 0, timeout_s * SECOND_NS)


def at(faulted, second, queries, **work):
    return faulted.advance(scripted(second, **work), queries, round(second * SECOND_NS))


FAILING = [
    kind
    for kind in FaultKind
    if KINDS[kind].status and not KINDS[kind].runs and kind not in {FaultKind.HANG, FaultKind.OOM}
]


@pytest.mark.parametrize("kind", FAILING)
def test_nothing_completes_while_every_execution_fails(kind):
    faulted = core()
    shown = at(faulted, 1, Queries(hit(kind)))
    assert (shown.busy_ns, shown.flops, shown.executions) == (0, 0, 10)
    assert shown.failures == ((KINDS[kind].status, 10),)
    assert shown.latency_counts[QUICK] == 10
    assert faulted.busy_share(0.5) == 0
    again = at(faulted, 1.5, Queries(hit(kind)))
    assert (again.busy_ns, again.executions, again.failures) == (0, 15, ((KINDS[kind].status, 15),))
    cleared = at(faulted, 2.5, None)
    assert (cleared.busy_ns, cleared.executions) == (SECOND_NS // 2, 25)
    assert faulted.busy_share(0.5) == 0.5


def test_a_slow_core_takes_longer_and_completes_less_once_it_is_always_busy():
    slow = Queries(hit(FaultKind.SLOW_CORE, factor=4.0))
    faulted = core()
    shown = at(faulted, 1, slow)  # half of the time times four: twice what there is
    assert (shown.busy_ns, shown.executions, shown.flops) == (SECOND_NS, 5, 50)
    assert shown.latency_counts[USUAL + 4] == 5
    assert faulted.busy_share(0.5) == 1
    idle = core()
    shown = at(idle, 1, slow, share=0.1)
    assert (shown.busy_ns, shown.executions) == (0.4 * SECOND_NS, 10)
    assert idle.busy_share(0.1) == pytest.approx(0.4)


def test_numerical_errors_run_and_count_as_failed():
    shown = at(core(), 1, Queries(hit(FaultKind.NUMERICAL)))
    assert (shown.busy_ns, shown.executions, shown.failures) == (SECOND_NS // 2, 10, ((1003, 10),))
    assert shown.latency_counts[USUAL] == 10


def test_a_counted_fault_hits_as_many_executions_as_it_says():
    one = hit(FaultKind.TIMEOUT, lasting=False)
    shown = at(core(), 1, Queries(one, one, None))
    assert (shown.executions, shown.failures) == (10, ((5, 2),))
    assert shown.busy_ns == pytest.approx(0.4 * SECOND_NS)


def test_a_hang_keeps_the_core_busy_until_it_is_cleared_or_times_out():
    hang = Queries(hit(FaultKind.HANG, lasting=False), None)
    faulted = core(timeout_s=5)
    shown = at(faulted, 1, hang)
    assert (shown.busy_ns, shown.executions, faulted.busy_share(0.5)) == (SECOND_NS, 0, 1)
    shown = at(faulted, 3, hang)
    assert (shown.busy_ns, shown.executions) == (3 * SECOND_NS, 0)
    hang.held = False
    shown = at(faulted, 4, hang)
    assert (shown.executions, shown.failures, hang.released) == (11, (), 0)

    hang = Queries(hit(FaultKind.HANG, lasting=False), None)
    faulted = core(timeout_s=5)
    at(faulted, 1, hang)
    shown = at(faulted, 7, hang, executions=0)
    assert (shown.failures, hang.released) == (((5, 1),), 1)


def test_a_lasting_fault_stays_where_no_question_is_left():
    faulted = core()
    at(faulted, 1, Queries(hit(FaultKind.DEVICE_LOST)))
    shown = at(faulted, 2, Queries(None, left=0))
    assert (shown.busy_ns, shown.failures) == (0, ((101, 20),))


KINDS_TRIED = [FaultKind.SLOW_CORE, FaultKind.NUMERICAL, FaultKind.HANG, FaultKind.DEVICE_LOST]
answers = st.lists(
    st.none()
    | st.builds(
        hit, st.sampled_from(KINDS_TRIED), lasting=st.booleans(), factor=st.sampled_from([1.0, 2.0, 7.5])
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(st.tuples(st.floats(0.01, 2), answers, st.booleans(), st.booleans()), max_size=12))
def test_counters_never_fall_and_agree(steps):
    faulted, second, before = core(timeout_s=1), 0.0, scripted(0, errors=True)
    for step_s, answer, held, asked in steps:
        second += step_s
        queries = Queries(*answer)
        queries.held = held
        shown = at(faulted, second, queries if asked else None, errors=True)
        assert before.busy_ns <= shown.busy_ns <= second * SECOND_NS + 10
        assert before.executions <= shown.executions
        assert sum(shown.latency_counts) == shown.executions
        assert all(one <= two for one, two in zip(before.latency_counts, shown.latency_counts, strict=True))
        assert sum(count for _, count in shown.failures) <= shown.executions
        before = shown
