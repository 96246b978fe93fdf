"""Recording from the dashboard: lines that every tool takes, and a full disk that harms nothing."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from neurontools.dashboard.recorder import SnapshotRecorder
from neurontools.dashboard.snapshot_history import SnapshotHistory
from neurontools.errors import NeuronToolsError
from neurontools.sources.recording import RecordingSource
from neurontools.sources.retrying import SourceProblem
from neurontools.tui.top.playback import ReplaySource
from neurontools.tui.top.source import RecordedSource
from tests.tui.top.fixed_source import FixedSource


@pytest.fixture
def recording(home, tick_at):
    """A recording of ten seconds, made by the dashboard's own means."""
    recorder = SnapshotRecorder("rec.jsonl")
    source = RecordedSource(FixedSource(*(tick_at(second) for second in range(11))), recorder)
    assert len(list(source.updates())) == 11
    return home / "rec.jsonl"


def test_each_update_is_a_line_with_every_group(recording):
    lines = recording.read_text().splitlines()
    assert len(lines) == 10
    for line in lines:
        report = json.loads(line)
        assert set(report["system_data"]) == {"memory_info", "neuron_hw_counters", "vcpu_usage"}
        (runtime,) = report["neuron_runtime_data"]
        assert set(runtime["report"]) == {
            "execution_stats",
            "memory_used",
            "neuron_runtime_vcpu_usage",
            "neuroncore_counters",
        }


def test_other_tools_take_it(recording, tool):
    replayed = tool("neurontools", "scenario", "replay", "--no-wait", str(recording))
    assert (replayed.returncode, replayed.stdout) == (0, recording.read_text())
    assert "trn1.2xlarge" in tool("neuron-ls", "--source", str(recording)).stdout
    assert "trn1.2xlarge" in tool("neuron-top", "--once", "--replay", str(recording)).stdout


def test_it_plays_back_what_was_seen(recording):
    tape = SnapshotHistory()
    assert list(ReplaySource(str(recording), tape).updates()) == []
    assert tape.end == 10
    first, last = tape.snapshot(0).snapshot, tape.snapshot(9).snapshot
    assert last.taken_ns - first.taken_ns == 9_000_000_000
    busy_ns = [tape.snapshot(number).snapshot.processes[0].cores[0].busy_ns for number in (8, 9)]
    assert (busy_ns[1] - busy_ns[0]) / 1e9 == pytest.approx(0.10, abs=0.001)
    tape.close()


def test_a_file_that_is_there_is_not_replaced(recording):
    before = recording.read_bytes()
    with pytest.raises(NeuronToolsError, match="already exists"):
        SnapshotRecorder(str(recording))
    assert recording.read_bytes() == before


def test_a_file_that_cannot_be_made_is_named(home):
    with pytest.raises(NeuronToolsError, match="no-such-dir"):
        SnapshotRecorder("no-such-dir/rec.jsonl")


def test_a_recording_without_a_line_leaves_no_file(home, tick_at):
    recorder = SnapshotRecorder("rec.jsonl")
    source = RecordedSource(FixedSource(tick_at(0)), recorder)
    assert len(list(source.updates())) == 1
    assert not (home / "rec.jsonl").exists()
    source.close()


def test_only_its_own_file_is_taken_away(home):
    recorder = SnapshotRecorder("rec.jsonl")
    (home / "rec.jsonl").rename(home / "moved")
    (home / "rec.jsonl").write_text("another's")
    recorder.close()
    assert (home / "rec.jsonl").read_text() == "another's"


def test_what_is_reported_after_the_end_is_not_recorded(home, tick_at):
    recorder = SnapshotRecorder("rec.jsonl")
    recorder.take(tick_at(0).snapshot)
    recorder.take(tick_at(1).snapshot)
    recorder.close()
    recorder.take(tick_at(2).snapshot)
    assert (home / "rec.jsonl").read_text().count("\n") == recorder.lines == 1
    assert recorder.problem == ""


class Full:
    """A file on a disk that takes so many bytes more."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def write(self, data):
        part = data[: self._room]
        self._room -= len(part)
        return self._file.write(part)

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_a_full_disk_ends_the_recording_after_a_whole_line_and_the_dashboard_goes_on(home, tick_at):
    recorder = SnapshotRecorder("rec.jsonl")
    recorder._file = Full(recorder._file, 7000)
    source = RecordedSource(FixedSource(*(tick_at(second) for second in range(11))), recorder)
    updates = list(source.updates())
    assert sum(not isinstance(update, SourceProblem) for update in updates) == 11
    assert updates[-1] == SourceProblem("recording stopped: No space left on device", is_outage=False)
    recorded = RecordingSource("rec.jsonl")
    assert len(list(recorded.snapshots())) == recorder.lines > 0
    assert recorded.notices == ()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda lines: [*lines[:3], lines[3][:50]], "cut off"),
        (lambda lines: [*lines[:3], "{}}\n", *lines[3:]], "not a report"),
    ],
)
def test_a_damaged_recording_is_played_as_far_as_it_goes(recording, damage, text):
    recording.write_text("".join(damage(recording.read_text().splitlines(keepends=True))))
    tape = SnapshotHistory()
    (trouble,) = ReplaySource(str(recording), tape).updates()
    assert text in trouble.text
    assert tape.end == 3
    tape.close()


def test_a_file_without_lines_says_so(home):
    (home / "empty").write_text("")
    tape = SnapshotHistory()
    (trouble,) = ReplaySource("empty", tape).updates()
    assert "no line with devices" in trouble.text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--replay", "no-such-file"), "recording not found: no-such-file"),
        (("--replay", "sim"), "recording not found: sim"),
        (("--replay", "x", "--machine", "m"), "cannot be combined with --source or --machine"),
        (("--replay", "x", "--speed", "0"), "--speed 0 is out of range"),
        (("--replay", "x", "--speed", "nan"), "--speed nan is out of range"),
        (("--record", "x", "--once"), "cannot be combined with --once"),
        (("--record", "x", "--replay", "y"), "cannot be combined with --replay"),
    ],
)
def test_invalid_input_is_named(tool, arguments, text):
    done = tool("neuron-top", *arguments)
    assert done.returncode in {1, 2}
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_of_a_machine_elsewhere_the_vcpus_of_this_host_are_not_recorded(home, tick_at):
    recorder = SnapshotRecorder("rec.jsonl")
    for second in range(3):
        recorder.take(replace(tick_at(second).snapshot, source="remote"))
    recorder.close()
    lines = (home / "rec.jsonl").read_text().splitlines()
    assert [set(json.loads(line)["system_data"]) for line in lines] == [{"neuron_hw_counters"}] * 2
