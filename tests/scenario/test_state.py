"""The state of a scenario is a function of the scenario, its seed and the time, and nothing in it is ever taken back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools import scenario
from neurontools.scenario.offline import ScenarioSnapshots
from neurontools.scenario.timeline import RunClock, RunEnd, ScenarioTimeline

NAMES = [name for name in scenario.scenario_names() if name not in {"idle", "thousand-processes"}]
GIB = 1 << 30


@pytest.fixture(scope="module")
def timelines():
    return {name: ScenarioTimeline(scenario.load(name)) for name in NAMES}


@settings(max_examples=60)
@given(st.sampled_from(NAMES), st.data())
def test_counters_never_fall(timelines, name, data):
    runs = list(timelines[name].runs)
    clock = RunClock(data.draw(st.sampled_from(runs)))
    run = clock.run
    times = sorted(data.draw(st.lists(st.floats(run.start_s, run.end_s), min_size=2, max_size=8)))
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
def test_no_device_ever_holds_more_than_it_has(timelines, name, share):
    timeline = timelines[name]
    snapshot = ScenarioSnapshots(timeline, "m").at(share * timeline.scenario.duration_s)
    for device in snapshot.devices:
        assert 0 <= device.memory_used_bytes <= device.memory_bytes
    owned = [use.core for process in snapshot.processes for use in process.cores]
    assert len(owned) == len(set(owned))


def test_a_state_does_not_depend_on_what_was_asked_before(timelines):
    timeline = timelines["crash-loop"]
    one, other = (
        ScenarioSnapshots(timeline, "m"),
        ScenarioSnapshots(ScenarioTimeline(scenario.load("crash-loop")), "m"),
    )
    for time_s in (0.0, 100.0, 50.0, 333.0):
        one.at(time_s)
    assert one.at(321.5) == other.at(321.5)


def test_a_seed_makes_it_another_one():
    at = [
        ScenarioSnapshots(ScenarioTimeline(scenario.load("crash-loop", seed)), "m").at(300.0)
        for seed in (1, 2, 1)
    ]
    assert at[0] == at[2] != at[1]


def test_the_leak_ends_in_a_refused_allocation_and_starts_again(timelines):
    leaky = [run for run in timelines["memory-leak"].runs if run.plan.group == "leaky"]
    assert [run.end for run in leaky] == [RunEnd.OUT_OF_MEMORY, RunEnd.OUT_OF_MEMORY, RunEnd.SCENARIO]
    first, second = leaky[:2]
    assert second.start_s == first.end_s + 15
    clock = RunClock(first)
    assert clock.state(first.fails_s - 1).failures == ()
    failed = clock.state(first.fails_s)
    assert failed.failures == ((4, 1),)
    assert failed.utilization == 0
    assert failed.memory.total_bytes > 25 * GIB
    assert RunClock(second).state(second.start_s + 6).memory.total_bytes < 6 * GIB


def test_pauses_between_crashes_grow_up_to_their_limit(timelines):
    runs = [run for run in timelines["crash-loop"].runs if run.plan.group == "crashing"]
    pauses = [round(after.start_s - before.end_s, 6) for before, after in itertools.pairwise(runs)]
    assert pauses[:7] == [2, 4, 8, 16, 32, 60, 60]
    assert all(12 <= run.end_s - run.start_s <= 20 for run in runs[:-1])


def test_the_straggler_is_busier_and_slower_than_the_others(timelines):
    snapshot = ScenarioSnapshots(timelines["training-32"], "m").at(200.0)
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


def test_the_storm_counts_errors_on_its_device_only(timelines):
    snapshots = ScenarioSnapshots(timelines["ecc-storm"], "m")
    before, after = snapshots.at(29.0), snapshots.at(599.0)
    assert before.devices[5].hardware.mem_ecc_corrected == 0
    assert after.devices[5].hardware.mem_ecc_corrected == 9 * 2 + 60 * 40
    assert after.devices[5].hardware.mem_ecc_uncorrected == 6
    assert after.devices[4].hardware.mem_ecc_corrected == 0


def test_work_of_those_that_are_gone_is_kept(timelines):
    snapshots = ScenarioSnapshots(timelines["crash-loop"], "m")
    totals = {time_s: snapshots.at(time_s).core_totals for time_s in (30.0, 200.0)}
    assert totals[200.0][0].executions > totals[30.0][0].executions > 0
    assert dict(totals[200.0][0].failures)[1002] >= 5


def test_changed_latency_leaves_the_past_as_it_was():
    text = (
        "description: d\ninstance: trn1.2xlarge\nduration: 100s\nprocesses:\n  g:\n    cores: 1\n"
        "    utilization: 10\n    executions: 100\n"
        "    latency: [{from: 0s, p50: 1ms, p99: 1ms}, {from: 50s, p50: 1s, p99: 1s}]\n"
    )
    (run,) = ScenarioTimeline(scenario.parse(text)).runs
    clock = RunClock(run)
    half, whole = clock.state(50.0), clock.state(100.0)
    fast = max(range(64), key=lambda bucket: half.latency_counts[bucket])
    assert whole.latency_counts[fast] == half.latency_counts[fast]
    assert sum(whole.latency_counts) == whole.executions == pytest.approx(10_000, abs=1)


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_process_restarts_as_many_times_as_the_file_says(times):
    text = (
        "description: d\ninstance: trn1.2xlarge\nduration: 10m\nprocesses:\n"
        f"  g: {{cores: 1, lifetime: 5s, restart: {{after: 1s, times: {times}}}}}\n"
    )
    (runs,) = ScenarioTimeline(scenario.parse(text)).runs.by_process
    assert [(run.attempt, run.start_s, run.end_s) for run in runs] == [
        (attempt, attempt * 6.0, attempt * 6.0 + 5.0) for attempt in range(times + 1)
    ]
    assert {run.end for run in runs} == {RunEnd.EXIT}


FAULTED = (
    "description: d\ninstance: trn1.2xlarge\nduration: 60s\nprocesses:\n"
    "  g: {count: 2, cores: 1, utilization: 50, executions: 10, memory: {tensors: 1 GiB}}\n"
    "faults:\n  - {at: 10s, "
)


@pytest.mark.parametrize(
    ("fault", "is_hit"),
    [
        ("kind: numerical, core: 0, count: 3}", lambda one, other: dict(one.failures) == {1003: 3}),
        (
            "kind: hang, core: 0}",
            lambda one, other: one.executions < 150 and one.busy_ns > 1.2 * other.busy_ns,
        ),
        ("kind: slow-core, core: 0, factor: 1.5}", lambda one, other: one.busy_ns > 1.2 * other.busy_ns),
        (
            "kind: ecc, ecc: mem-uncorrected, device: 0}",
            lambda one, other: sum(dict(one.failures).values()) > 100,
        ),
    ],
)
def test_faults_change_what_processes_do(fault, is_hit):
    found = scenario.parse(FAULTED + fault + "\n")
    snapshots = ScenarioSnapshots(ScenarioTimeline(found), "m")
    at_once = ScenarioSnapshots(ScenarioTimeline(found), "m").at(50.0)
    for time_s in (3.3, 12.1, 31.7):
        snapshots.at(time_s)
    assert snapshots.at(50.0) == at_once
    (one,), (other,) = (process.cores for process in at_once.processes)
    assert is_hit(one, other)
    hit = at_once.processes[0]
    assert sum(hit.latency_counts) == one.executions == sum(count for _, count in hit.status_counts)


def test_a_process_waits_while_its_device_is_lost():
    text = FAULTED.replace("executions: 10,", "executions: 10, lifetime: 20s, restart: {after: 1s},")
    found = scenario.parse(text + "kind: device-lost, device: 0, duration: 30s}\n")
    snapshots = ScenarioSnapshots(ScenarioTimeline(found), "m")
    assert [len(snapshots.at(time_s).processes) for time_s in (19.0, 30.0, 39.0)] == [2, 0, 0]
    assert len(snapshots.at(40.5).processes) == 2
