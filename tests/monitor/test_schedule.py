"""When what is collected, with a clock that the test turns; and the stream of reports over it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.monitor.collector import SamplingSchedule, recorded_reports, reports
from neurontools.monitor.config import parse_config
from tests.monitor.conftest import FixedHost, job, machine_at


def due_times(periods, until_s):
    schedule = SamplingSchedule(periods, 100.0)
    taken = []
    while (now := schedule.next_s()) <= 100.0 + until_s:
        taken.append((round(now - 100.0, 6), "".join(sorted(schedule.take(now)))))
    return taken


def test_things_are_due_at_multiples_of_their_periods_together_where_they_meet():
    assert due_times({"a": 1.0, "b": 2.0}, 4) == [(0, "ab"), (1, "a"), (2, "ab"), (3, "a"), (4, "ab")]


def test_fractions_meet_too():
    times = due_times({"a": 0.1, "b": 0.3}, 0.9)
    assert [names for _, names in times] == ["ab", "a", "a", "ab", "a", "a", "ab", "a", "a", "ab"]


def test_what_was_missed_is_not_made_up_for():
    schedule = SamplingSchedule({"a": 1.0}, 0.0)
    schedule.take(0.0)
    assert schedule.take(7.4) == {"a"}
    assert schedule.next_s() == 8.0


def test_nothing_is_never_due():
    assert SamplingSchedule({}, 0.0).next_s() == float("inf")


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 10), min_size=1),
    st.lists(st.floats(0, 5), max_size=20),
)
def test_time_never_stands_still(periods, delays):
    schedule = SamplingSchedule(periods, 5.0)
    now = 5.0
    for delay in delays:
        now = max(now, schedule.next_s()) + delay
        assert schedule.take(now)
        assert schedule.next_s() > now


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 50.0
        self.host = FixedHost(now=50.0)

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds
        self.host.now = self.now


class Still:
    """A machine on which one process does its work, at the clock's time."""

    def __init__(self, clock, tags=("bert",)):
        self.clock = clock
        self.tags = tags
        self.asked = 0

    def snapshot(self):
        self.asked += 1
        jobs = [
            job(
                pid=100 + index, tag=tag, busy_s=self.clock.now / 2, statuses={0: round(self.clock.now * 100)}
            )
            for index, tag in enumerate(self.tags)
        ]
        return machine_at(self.clock.now, *jobs)

    def close(self): ...


def stream(text, count, tags=("bert",)):
    config, problems = parse_config(text, "m.conf")
    assert problems == ()
    clock = Clock()
    source = Still(clock, tags)
    found = reports(config, source.snapshot, clock.host, clock=clock, sleep=clock.sleep)
    told = [(round(clock.now - 50.0, 3), report) for report in itertools.islice(found, count)]
    return told, source


def groups_of(report):
    entry = report.runtimes[0] if report.runtimes else None
    names = ("neuroncore_counters", "memory_used", "vcpu_usage", "execution_stats")
    found = {name for name in names if entry and getattr(entry, name)}
    return found | {f"system.{name}" for name in report.system.__slots__ if getattr(report.system, name)}


def test_a_line_holds_what_is_due_then():
    told, source = stream(
        '{"period":"1s","neuron_runtimes":[{"metrics":[{"type":"neuroncore_counters"},{"type":"memory_used","period":"2s"}]}],'
        '"system_metrics":[{"type":"memory_info","period":"3s"}]}',
        4,
    )
    assert [time for time, _ in told] == [0.05, 1.0, 2.0, 3.0]
    assert [groups_of(report) for _, report in told] == [
        {"neuroncore_counters", "memory_used", "system.memory_info"},
        {"neuroncore_counters"},
        {"neuroncore_counters", "memory_used"},
        {"neuroncore_counters", "system.memory_info"},
    ]
    assert source.asked == 5


def test_periods_are_those_really_covered_and_rates_are_over_them():
    told, _ = stream(
        '{"neuron_runtimes":[{"metrics":[{"type":"neuroncore_counters","period":"1s"},{"type":"execution_stats","period":"2s"}]}]}',
        3,
    )
    first, second, third = (report.runtimes[0] for _, report in told)
    assert first.neuroncore_counters.period_s == pytest.approx(0.05)
    assert second.neuroncore_counters.period_s == pytest.approx(0.95)
    assert third.neuroncore_counters.period_s == pytest.approx(1.0)
    assert third.execution_stats.period_s == pytest.approx(1.95)
    assert third.execution_stats.executions.completed == 195
    assert all(
        dict(entry.neuroncore_counters.cores)[0].utilization_percent == 50 for entry in (first, second, third)
    )


def test_after_a_machine_was_waited_for_one_line_covers_all_of_it():
    config, _ = parse_config(
        '{"period":"1s","neuron_runtimes":[{"metrics":[{"type":"memory_used"}]}]}', "m.conf"
    )
    clock = Clock()

    class Slow(Still):
        def snapshot(self):
            if self.asked == 3:
                clock.sleep(7.4)
            return super().snapshot()

    found = reports(config, Slow(clock).snapshot, clock.host, clock=clock, sleep=clock.sleep)
    times = [
        (round(clock.now - 50.0, 3), report.runtimes[0].memory_used) for report in itertools.islice(found, 5)
    ]
    assert [time for time, _ in times] == [0.05, 1.0, 9.4, 10.0, 11.0]
    assert times[2][1].period_s == pytest.approx(8.4)


def test_the_hosts_rates_begin_with_the_second_line():
    told, _ = stream(
        '{"period":"1s","system_metrics":[{"type":"vcpu_usage"},{"type":"memory_info"},{"type":"neuron_hw_counters"}]}',
        2,
    )
    assert groups_of(told[0][1]) == {"system.memory_info"}
    assert groups_of(told[1][1]) == {"system.memory_info", "system.vcpu_usage", "system.hardware_errors"}


def test_without_groups_the_facts_come_each_period():
    told, _ = stream('{"period":"7s"}', 3)
    assert [time for time, _ in told] == [0.05, 7.0, 14.0]
    assert {report.hardware.neuron_device_count for _, report in told} == {1}
    assert all(groups_of(report) == set() for _, report in told)


def test_each_process_is_one_entry_with_what_the_filters_that_find_it_ask_for():
    told, _ = stream(
        '{"period":"1s","neuron_runtimes":['
        '{"tag_filter":"^train","metrics":[{"type":"neuroncore_counters"}]},'
        '{"tag_filter":"^serve","metrics":[{"type":"memory_used"}]},'
        '{"tag_filter":"train-1|102","metrics":[{"type":"execution_stats"},{"type":"neuroncore_counters"}]}]}',
        1,
        tags=("train-1", "serve", "", "other"),
    )
    entries = {
        entry.tag: {
            name for name in ("neuroncore_counters", "memory_used", "execution_stats") if getattr(entry, name)
        }
        for entry in told[0][1].runtimes
    }
    assert entries == {
        "train-1": {"neuroncore_counters", "execution_stats"},
        "serve": {"memory_used"},
        "102": {"neuroncore_counters", "execution_stats"},
    }


def test_a_recording_gives_a_report_for_each_snapshot_without_this_host():
    config, _ = parse_config(
        '{"neuron_runtimes":[{"metrics":[{"type":"neuroncore_counters"}]}],"system_metrics":[{"type":"vcpu_usage"},'
        '{"type":"memory_info"},{"type":"neuron_hw_counters"}]}',
        "m.conf",
    )
    snapshots = [machine_at(second, job(busy_s=second / 4, origin="recorded")) for second in (1, 3, 4)]
    found = list(recorded_reports(config, snapshots, FixedHost()))
    shares = [dict(report.runtimes[0].neuroncore_counters.cores)[0].utilization_percent for report in found]
    assert shares == [0, 25, 25]
    assert all(groups_of(report) == {"neuroncore_counters", "system.hardware_errors"} for report in found)
