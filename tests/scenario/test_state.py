"""The state of a scenario is a function of the scenario, its seed and the time, and nothing in it is ever taken back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools import scenario
from neurontools.scenario.lives import End
from neurontools.scenario.script import Script
from neurontools.scenario.snapshots import Snapshots
from neurontools.scenario.state import LifeClock

NAMES = [name for name in scenario.scenario_names() if name not in {"idle", "thousand-processes"}]
GIB = 1 << 30


@pytest.fixture(scope="module")
def scripts():
    return {name: Script(scenario.load(name)) for name in NAMES}


@settings(max_examples=60)
@given(st.sampled_from(NAMES), st.data())
def test_counters_never_fall(scripts, name, data):
    lives = list(scripts[name].lives)
    clock = LifeClock(data.draw(st.sampled_from(lives)))
    life = clock.life
    times = sorted(data.draw(st.lists(st.floats(life.start_s, life.end_s), min_size=2, max_size=8)))
    states = [clock.state(time_s) for time_s in times]
    for before, after in itertools.pairwise(states):
        assert before.executions <= after.executions
        assert before.busy_s <= after.busy_s + 1e-9
        assert before.cpu_user_s <= after.cpu_user_s + 1e-9
        assert all(count <= dict(after.failures)[status] for status, count in before.failures)
        assert all(
            one <= other for one, other in zip(before.latency_counts, after.latency_counts, strict=True)
        )
    for state in states:
        assert sum(state.latency_counts) == state.executions
        assert 0 <= state.utilization <= 100


@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.floats(0, 1))
def test_no_device_ever_holds_more_than_it_has(scripts, name, share):
    script = scripts[name]
    snapshot = Snapshots(script, "m").at(share * script.scenario.duration_s)
    for device in snapshot.devices:
        assert 0 <= device.memory_used_bytes <= device.memory_bytes
    owned = [use.core for process in snapshot.processes for use in process.cores]
    assert len(owned) == len(set(owned))


def test_a_state_does_not_depend_on_what_was_asked_before(scripts):
    script = scripts["crash-loop"]
    one, other = Snapshots(script, "m"), Snapshots(Script(scenario.load("crash-loop")), "m")
    for time_s in (0.0, 100.0, 50.0, 333.0):
        one.at(time_s)
    assert one.at(321.5) == other.at(321.5)


def test_a_seed_makes_it_another_one():
    at = [Snapshots(Script(scenario.load("crash-loop", seed)), "m").at(300.0) for seed in (1, 2, 1)]
    assert at[0] == at[2] != at[1]


def test_the_leak_ends_in_a_refused_allocation_and_starts_again(scripts):
    leaky = [life for life in scripts["memory-leak"].lives if life.plan.group == "leaky"]
    assert [life.end for life in leaky] == [End.OUT_OF_MEMORY, End.OUT_OF_MEMORY, End.SCENARIO]
    first, second = leaky[:2]
    assert second.start_s == first.end_s + 15
    clock = LifeClock(first)
    assert clock.state(first.fails_s - 1).failures == ()
    failed = clock.state(first.fails_s)
    assert failed.failures == ((4, 1),)
    assert failed.utilization == 0
    assert failed.memory.total_bytes > 25 * GIB
    assert LifeClock(second).state(second.start_s + 6).memory.total_bytes < 6 * GIB


def test_pauses_between_crashes_grow_up_to_their_limit(scripts):
    lives = [life for life in scripts["crash-loop"].lives if life.plan.group == "crashing"]
    pauses = [round(after.start_s - before.end_s, 6) for before, after in itertools.pairwise(lives)]
    assert pauses[:7] == [2, 4, 8, 16, 32, 60, 60]
    assert all(12 <= life.end_s - life.start_s <= 20 for life in lives[:-1])


def test_the_straggler_is_busier_and_slower_than_the_others(scripts):
    snapshot = Snapshots(scripts["training-32"], "m").at(200.0)
    ranks = {process.tag: process for process in snapshot.processes}
    straggler, other = ranks["llama-rank17"], ranks["llama-rank16"]
    assert straggler.cores[0].busy_ns > 1.2 * other.cores[0].busy_ns
    assert abs(straggler.cores[0].executions - other.cores[0].executions) < 5
    mean = [
        sum(bucket * count for bucket, count in enumerate(process.latency_counts))
        / sum(process.latency_counts)
        for process in (straggler, other)
    ]
    assert mean[0] > mean[1] + 0.5


def test_the_storm_counts_errors_on_its_device_only(scripts):
    snapshots = Snapshots(scripts["ecc-storm"], "m")
    before, after = snapshots.at(29.0), snapshots.at(599.0)
    assert before.devices[5].hardware.mem_ecc_corrected == 0
    assert after.devices[5].hardware.mem_ecc_corrected == 9 * 2 + 60 * 40
    assert after.devices[5].hardware.mem_ecc_uncorrected == 6
    assert after.devices[4].hardware.mem_ecc_corrected == 0


def test_work_of_those_that_are_gone_is_kept(scripts):
    snapshots = Snapshots(scripts["crash-loop"], "m")
    totals = {time_s: snapshots.at(time_s).core_totals for time_s in (30.0, 200.0)}
    assert totals[200.0][0].executions > totals[30.0][0].executions > 0
    assert dict(totals[200.0][0].failures)[1002] >= 5


def test_changed_latency_leaves_the_past_as_it_was():
    text = (
        "description: d\ninstance: trn1.2xlarge\nduration: 100s\nprocesses:\n  g:\n    cores: 1\n"
        "    utilization: 10\n    executions: 100\n"
        "    latency: [{from: 0s, p50: 1ms, p99: 1ms}, {from: 50s, p50: 1s, p99: 1s}]\n"
    )
    (life,) = Script(scenario.parse(text)).lives
    clock = LifeClock(life)
    half, whole = clock.state(50.0), clock.state(100.0)
    fast = max(range(64), key=lambda bucket: half.latency_counts[bucket])
    assert whole.latency_counts[fast] == half.latency_counts[fast]
    assert sum(whole.latency_counts) == whole.executions == pytest.approx(10_000, abs=1)
