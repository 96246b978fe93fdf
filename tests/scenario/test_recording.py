"""Recordings: the bytes of the monitor's lines, in the monitor's pace."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools import scenario
from neurontools.monitor.codec import parse_line
from neurontools.scenario.offline import offline_lines
from neurontools.scenario.recording import DamagedLine, LineTimer, read_recording, record, replay


def line(**groups: float) -> bytes:
    """Return a line with groups of the host, by their periods."""
    data = {name: {"period": period, "error": ""} for name, period in groups.items()}
    return json.dumps({"neuron_runtime_data": [], "system_data": data}).encode() + b"\n"


@pytest.fixture(scope="module")
def storm() -> bytes:
    lines = offline_lines(scenario.load("ecc-storm"), machine="m", duration_s=60)
    return b"".join(one.encode() + b"\n" for one in lines)


class Clock:
    """A clock that waits by itself."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self.slept: list[float] = []

    def read(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.time_s += seconds


def replayed(data: bytes, **options):
    written, damage = [], []
    counts = replay(io.BytesIO(data), written.append, damage.append, **options)
    return b"".join(written), damage, counts


def test_a_replay_is_the_recording_byte_for_byte(storm):
    data, damage, counts = replayed(storm, speed=None)
    assert data == storm
    assert damage == []
    assert counts == (storm.count(b"\n"), 0)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.booleans())
def test_odd_but_valid_lines_stay_as_they_are(choices, ends):
    odd = [
        line(a=1),
        line(a=1).replace(b",", b" , "),
        line(a=1).replace(b"\n", b"\r\n"),
        b'{"system_data":null}\n',
    ]
    data = b"".join(odd[choice] for choice in choices)
    data = data if ends else data.rstrip(b"\r\n")
    assert replayed(data, speed=None)[0] == data


def test_the_pace_is_that_of_the_periods(storm):
    clock = Clock()
    replayed(storm, speed=2.0, clock=clock.read, sleep=clock.sleep)
    assert clock.slept == [0.0, 2.475] + [2.5] * (storm.count(b"\n") - 2)  # the first line covers 50 ms


def test_before_it_is_played_again_it_waits_as_between_two_lines():
    for lines, waits in (([line(a=0.05)], [0.0, 2.5]), ([line(a=0.05), line(a=3)], [0.0, 1.5, 1.5])):
        clock = Clock()
        replayed(b"".join(lines), speed=2.0, again=True, clock=clock.read, sleep=clock.sleep)
        assert clock.slept == waits


def test_groups_with_different_periods_come_at_their_times():
    # One group every 2 s, one every 3 s: collected at 0, 2, 3, 4, 6, 8, 9.
    lines = [line(a=0.001, b=0.001), line(a=2), line(b=3), line(a=2), line(a=2, b=3), line(a=2), line(b=3)]
    found = [one.time_s for one in read_recording(io.BytesIO(b"".join(lines)))]
    assert found == [0, 2, 3, 4, 6, 8, 9]


def test_a_process_that_comes_does_not_disturb_the_pace():
    def report(pid: int, period: float) -> dict:
        runtimes = [{"pid": pid, "report": {"memory_used": {"period": period}}}]
        return {"neuron_runtime_data": runtimes, "system_data": {"a": {"period": 5.0}}}

    pacer = LineTimer()
    assert [pacer.time_s(report(pid, period)) for pid, period in ((1, 5), (1, 5), (2, 0.7), (2, 5))] == [
        0,
        5,
        10,
        15,
    ]


@settings(max_examples=50)
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(-1, 1e7) | st.text(max_size=2)), max_size=10)
)
def test_times_never_fall_whatever_a_line_says(reports):
    pacer = LineTimer()
    times = [
        pacer.time_s({"system_data": {name: {"period": period} for name, period in groups.items()}})
        for groups in reports
    ]
    assert times == sorted(times)


def test_a_last_line_that_breaks_off_is_reported_and_left_out(storm):
    cut = storm[:-100]
    data, damage, counts = replayed(cut, speed=None)
    whole = storm[: storm[:-1].rindex(b"\n") + 1]
    assert data == whole
    assert [one.cut for one in damage] == [True]
    number = storm.count(b"\n")
    assert counts[1] == 0
    assert str(damage[0]) == f"line {number}: incomplete, skipped: the file ends here"


@pytest.mark.parametrize(
    "bad", [b"{\n", b"\n", b"[]\n", b"\xff\xfe\n", b'{"a":1}\n', b'{"system_data":3}\n', b"nonsense\n"]
)
def test_a_damaged_line_in_the_middle_is_reported_and_left_out(bad):
    data, damage, counts = replayed(line(a=1) + bad + line(a=1), speed=None)
    assert data == line(a=1) * 2
    assert [(one.number, one.cut) for one in damage] == [(2, False)]
    assert counts == (2, 1)


def test_recording_stops_at_a_count_or_a_duration():
    lines = [line(a=5)] * 10
    for options, expected in (({"count": 3}, 3), ({"duration_s": 12.0}, 3), ({}, 10)):
        out = io.BytesIO()
        assert record(lines, out, **options) == (expected, 0)
        assert out.getvalue() == line(a=5) * expected


def test_only_whole_lines_are_recorded():
    out, damage = io.BytesIO(), []
    assert record([line(a=1), b"oops\n", line(a=1)[:-5]], out, on_damage=damage.append) == (1, 2)
    assert out.getvalue() == line(a=1)
    assert damage[0] == DamagedLine(2, damage[0].reason)


@pytest.mark.parametrize("name", ["single-training", "memory-leak", "crash-loop", "inference-fleet", "idle"])
def test_a_computed_recording_is_the_same_every_time(name):
    one, other = (
        list(offline_lines(scenario.load(name), machine="m", period_s=20, duration_s=400)) for _ in range(2)
    )
    assert one == other
    assert len(one) == (15 if name == "idle" else 21)
    for text in one:
        parse_line(text)


def test_another_seed_gives_another_recording():
    lines = [
        list(offline_lines(scenario.load("crash-loop", seed), machine="m", duration_s=30)) for seed in (1, 2)
    ]
    assert lines[0] != lines[1]


def test_a_computed_recording_says_what_happens():
    found = scenario.load("memory-leak")
    reports = [parse_line(text) for text in offline_lines(found, machine="m", period_s=5)]
    used = [
        next((run.memory_used.device_bytes for run in report.runtimes if run.tag == "chat-server"), 0)
        for report in reports
    ]
    assert max(used) > 28 << 30
    assert used[91] < 1 << 30  # between two starts
    errors = sum(run.execution_stats.errors.runtime for report in reports for run in report.runtimes)
    generic = sum(run.execution_stats.errors.generic for report in reports for run in report.runtimes)
    assert errors + generic == 2
    assert reports[40].system.vcpu_usage.average.user == pytest.approx(20, abs=0.1)
    assert reports[40].system.memory_info.memory_used_bytes == 11 << 30
    assert all(run.vcpu_usage.error == "" for report in reports for run in report.runtimes)


def test_the_last_line_still_shows_everybody():
    *_, last = offline_lines(scenario.load("training-32"), machine="m", period_s=60)
    assert len(parse_line(last).runtimes) == 32


def test_hash_randomization_changes_nothing(home):
    code = (
        "from neurontools import scenario; from neurontools.scenario.offline import offline_lines; import hashlib\n"
        "lines = offline_lines(scenario.load('mixed-tenants'), machine='m', period_s=60)\n"
        "print(hashlib.sha256('\\n'.join(lines).encode()).hexdigest())"
    )
    import os

    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "77")
    }
    assert len(digests) == 1
