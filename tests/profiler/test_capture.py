from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from neurontools.errors import UsageError
from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.capture import format as capture_format
from neurontools.profiler.capture.format import ProfileError, Track
from neurontools.profiler.capture.observer import _report_profile
from neurontools.profiler.capture.settings import (
    CaptureOptions,
    DeviceProfile,
    options_from_environ,
    output_directory,
)
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.reader import open_captures
from neurontools.runtime.host_activity import HOST_LOAD, HostEvent

if TYPE_CHECKING:
    from conftest import Maker


INSPECT = "NEURON_RT_INSPECT_"


def only(directory: Path) -> Path:
    (found,) = directory.iterdir()
    return found


def test_a_record_has_the_layout_that_numpy_maps() -> None:
    packed = capture_format.RECORD.pack(2**62, 5, -9, 1, 2, 3, 1003, 7, Track.HOST)
    (record,) = np.frombuffer(packed, dtype=capture_format.record_dtype())
    assert capture_format.RECORD.size == capture_format.record_dtype().itemsize == 40
    assert record.tolist() == (2**62, 5, -9, 1, 2, 3, 1003, 7, Track.HOST)


def test_a_run_becomes_events_on_two_clocks(home: Path, maker: Maker) -> None:
    maker.finished(home / "p", steps=3)
    (capture,) = open_captures(str(home / "p"))
    assert capture.records["track"].tolist() == [Track.RUNTIME, *[Track.MODEL] * 3]
    assert {row.track: row.events.count for row in load(str(home / "p")).rows} == {
        Track.RUNTIME: 1 + 3,
        Track.HARDWARE: 3,
        Track.MODEL: 3,
        Track.TENSOR: 6,
        Track.VECTOR: 3,
        Track.SCALAR: 3,
        Track.GPSIMD: 3,
        Track.DMA: 9,
    }
    assert capture.complete
    assert capture.meta.command == ("python", "train.py")
    assert capture.meta.pid == os.getpid()
    assert only(home / "p").name == f"i-0123456789abcdef0_pid_{os.getpid()}"
    assert json.loads((only(home / "p") / "meta.json").read_text())["is_simulation"] is True


def test_the_neff_is_stored_once_and_paired_by_its_hash(home: Path, maker: Maker) -> None:
    maker.finished(home / "p", ncs=(0, 1))
    (stored,) = only(home / "p").glob("neff_*.neff")
    (capture,) = open_captures(str(home / "p"))
    assert stored.read_bytes() == maker.neff()
    assert {f"neff_{model.neff_hash}.neff" for model in capture.models.values()} == {stored.name}
    assert len(capture.programs) == 1


def test_device_time_starts_at_the_wall_start_and_never_overlaps(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p")
    model = maker.model()
    capture.on_load(model, 1_000, 2_000)
    for execution, start in enumerate((10_000, 15_000, 90_000), 1):
        capture.on_execute(model, execution, start, start + 4_000, 0)
    capture.on_close()
    (runs,) = load(str(home / "p")).runs
    assert (runs.wall_start + 1_000).tolist() == [10_000, 15_000, 90_000]
    assert (runs.device_start + 1_000).tolist() == [
        10_000,
        35_000,
        90_000,
    ]  # the second waits for the first's 25 us


def test_a_failed_execution_has_a_status_and_no_device_records(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p")
    model = maker.model()
    capture.on_load(model, 1, 2)
    for execution, status in enumerate((0, 1200, 1003), 1):
        capture.on_execute(model, execution, 100_000 * execution, 100_000 * execution + 9, status)
    capture.on_close()
    found = load(str(home / "p"))
    (model_row,) = found.rows_of(Track.MODEL)
    assert model_row.events.block(0, 2).execution.tolist() == [1, 3]
    assert summarise(found).models[0].failures == 2


def test_model_mode_profiles_the_first_execution_of_each_neff_on_a_core(home: Path, maker: Maker) -> None:
    maker.finished(home / "p", CaptureOptions(device=DeviceProfile.MODEL), ncs=(0, 1))
    rows = load(str(home / "p")).rows_of(Track.MODEL)
    assert [(row.nc, row.last - row.first) for row in rows] == [(0, 1), (1, 1)]


def test_without_device_profile_only_wall_times_are_stored(home: Path, maker: Maker) -> None:
    maker.finished(home / "p", CaptureOptions())
    found = load(str(home / "p"))
    assert all(row.track.measured for row in found.rows)
    assert "no device profile" in summarise(found).warnings[0]


def test_over_the_limit_the_oldest_are_dropped_counted_and_reported_once(home: Path, maker: Maker) -> None:
    said: list[str] = []
    options = CaptureOptions(device=DeviceProfile.SESSION, max_events_per_nc=400)
    capture = maker.capture(home / "p", options, on_warning=said.append)
    maker.train(capture, steps=2000, wall_ns=400_000)
    capture.on_close()
    found = load(str(home / "p"))
    (runs,) = found.runs
    kept = len(runs.number)
    assert 800 <= kept <= 900  # 400 of each of two cores, and the file of 100 records that is written
    assert runs.number.tolist() == list(range(2001 - kept, 2001))
    assert {row.track: row.events.count for row in found.rows}[Track.TENSOR] == 2 * kept
    (warning,) = said
    assert f"dropped {2001 - kept}" in warning
    assert any(f"the oldest {2001 - kept} records dropped" in each for each in summarise(found).warnings)


def test_a_damaged_neff_costs_the_device_profile_and_not_the_run(home: Path, maker: Maker) -> None:
    maker.finished(home / "p", steps=2)
    (stored,) = only(home / "p").glob("neff_*.neff")
    for damage, reason in ((b"x" * 2000, "NEFF"), (None, "No such file")):
        stored.write_bytes(damage) if damage else stored.unlink()
        found = load(str(home / "p"))
        assert found.event_count == 1 + 2 * 2
        (problem,) = found.problems
        assert problem.startswith("no device records of NEFF ")
        assert reason in problem


def test_filtered_cores_and_events_are_not_recorded(home: Path, maker: Maker) -> None:
    environ = {INSPECT + "EVENT_FILTER_NC": "1", INSPECT + "EVENT_FILTER_TYPE": "software,^nrt_load"}
    maker.finished(home / "p", options_from_environ(environ), ncs=(0, 1))
    found = load(str(home / "p"))
    assert [(row.nc, row.track, row.last - row.first) for row in found.rows] == [(1, Track.RUNTIME, 5)]


def test_a_second_capture_of_the_same_process_gets_its_own_directory(home: Path, maker: Maker) -> None:
    for _ in range(2):
        maker.finished(home / "p", steps=1)
    name = f"i-0123456789abcdef0_pid_{os.getpid()}"
    assert sorted(path.name for path in (home / "p").iterdir()) == [name, f"{name}_2"]


def test_events_after_the_end_and_of_unknown_models_are_ignored(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p")
    capture.on_execute(maker.model(), 1, 10, 20, 0)
    capture.on_load(maker.model(), 1, 2)
    capture.on_unload(maker.model())
    capture.on_execute(maker.model(), 1, 10, 20, 0)
    capture.on_close()
    capture.on_close()
    capture.on_load(maker.model(), 1, 2)
    assert load(str(home / "p")).event_count == 1


def test_a_full_disk_ends_the_capture_with_one_warning_and_not_the_run(home: Path, maker: Maker) -> None:
    said: list[str] = []
    capture = maker.capture(home / "p", on_warning=said.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        maker.train(capture, steps=1000)
        capture.on_close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert len(said) == 1
    assert "File too large" in said[0]
    assert sum(runs.number.size for runs in load(str(home / "p")).runs) <= 4096 // 40


def test_an_unusable_directory_is_named(home: Path, maker: Maker) -> None:
    (home / "file").write_text("")
    with pytest.raises(ProfileError, match="cannot create profile directory"):
        maker.capture(home / "file" / "p")


KILLED = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from conftest import Maker

    class Endless(Maker):
        pass

    maker = Endless()
    capture = maker.capture(Path({directory!r}))
    model = maker.model()
    now = maker.start_ns
    capture.on_load(model, now, now + 1000)
    for execution in range(1, 10**9):
        now += 100_000
        capture.on_execute(model, execution, now, now + 50_000, 0)
        if execution == 20_000:
            print("running", flush=True)
"""


def test_a_capture_killed_in_the_middle_still_opens(home: Path) -> None:
    code = textwrap.dedent(KILLED).format(tests=str(Path(__file__).parent), directory=str(home / "p"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        child.send_signal(signal.SIGKILL)
    found = load(str(home / "p"))
    (model_row,) = found.rows_of(Track.MODEL)
    assert model_row.last - model_row.first >= 19_000
    assert any("did not exit cleanly" in warning for warning in summarise(found).warnings)


def test_every_cut_of_the_event_file_opens(home: Path, maker: Maker) -> None:
    maker.finished(home / "p", steps=2)
    path = only(home / "p") / "events-000000.bin"
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        (capture,) = open_captures(str(home / "p"))
        assert len(capture.records) == size // capture_format.RECORD.size


def test_a_forked_child_writes_nothing(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p")
    capture.on_load(maker.model(), 1, 2)
    pid = os.fork()
    if pid == 0:
        maker.train(capture, steps=50)
        capture.on_close()
        os._exit(0)
    os.waitpid(pid, 0)
    capture.on_close()
    assert load(str(home / "p")).event_count == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0", "off"), ("1", "session"), ("session", "session"), ("model", "model"), ("", "off")],
)
def test_the_device_profile_variable(value: str, expected: str) -> None:
    assert options_from_environ({INSPECT + "DEVICE_PROFILE": value}).device == expected


@pytest.mark.parametrize(("text", "steps"), [("10-20", (10, 20)), (" 7 ", (7, 7)), ("1-1", (1, 1))])
def test_steps_are_a_range_from_1(text: str, steps: tuple[int, int]) -> None:
    assert options_from_environ({"NEURONTOOLS_PROFILE_STEPS": text}).steps == steps
    assert options_from_environ({}).steps is None


def test_capture_is_off_by_default_and_goes_to_output_when_on() -> None:
    assert output_directory({}) is None
    assert output_directory({INSPECT + "ENABLE": "0", INSPECT + "OUTPUT_DIR": "x"}) is None
    assert output_directory({INSPECT + "ENABLE": "1"}) == "./output"
    assert output_directory({INSPECT + "ENABLE": "1", INSPECT + "OUTPUT_DIR": "x"}) == "x"


OF_HOST = set(HostEvent) - HOST_LOAD


@pytest.mark.parametrize(
    ("text", "system", "host"),
    [
        ("", {0, 1, 2}, OF_HOST),
        ("hardware", {2}, set()),
        ("software", {0, 1}, OF_HOST),
        ("software,^model_load,^upload", {1}, OF_HOST - {HostEvent.UPLOAD}),
        ("model_load,nrt_execute,runtime_execute", {0, 1}, set()),
        ("hardware,tensor_read,tensor_write", {2}, {HostEvent.UPLOAD, HostEvent.DOWNLOAD}),
        ("hardware,^cc_exec", {2}, set()),
        ("compile, step", set(), {HostEvent.COMPILE, HostEvent.STEP}),
        ("^nrt_load", {1, 2}, OF_HOST),
    ],
)
def test_events_are_filtered_by_group_and_name(text: str, system: set[int], host: set[HostEvent]) -> None:
    options = options_from_environ({INSPECT + "EVENT_FILTER_TYPE": text})
    assert (options.system_events, options.host_events) == (system, host)


@pytest.mark.parametrize("fails", [False, True])
def test_a_profile_on_failure_is_kept_if_an_execution_fails(fails: bool, home: Path, maker: Maker) -> None:
    environ = {INSPECT + "ON_FAIL": "1"}
    assert output_directory(environ) == "./output"
    assert not options_from_environ({INSPECT + "ENABLE": "1", **environ}).only_failures
    said: list[str] = []
    capture = maker.capture(home / "p", options_from_environ(environ), on_warning=said.append)
    maker.train(capture, steps=2)
    capture.on_execute(maker.model(), 3, maker.start_ns * 2, maker.start_ns * 2 + 9, 1200 if fails else 0)
    capture.on_close()
    assert len(list((home / "p").iterdir())) == fails
    assert [text.split(";")[0] for text in said] == ["an execution of mlp failed"] * fails
    if fails:
        trace = load(str(home / "p"))
        assert summarise(trace).models[0].failures == 1
        assert trace.rows_of(Track.TENSOR)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEVICE_PROFILE", "2"),
        ("SYSTEM_PROFILE", "maybe"),
        ("SYS_TRACE_MAX_EVENTS_PER_NC", "-1"),
        ("SYS_TRACE_MAX_EVENTS_PER_NC", "many"),
        ("EVENT_FILTER_NC", "0,a"),
        ("EVENT_FILTER_NC", "3-"),
    ],
)
def test_an_invalid_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=INSPECT + name):
        options_from_environ({INSPECT + name: value})


def test_the_end_of_a_run_names_the_profile_and_the_next_command(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    _report_profile(str(home / "my prof"), os.getpid())
    _report_profile("/elsewhere/prof", os.getpid())
    _report_profile(str(home / "of a fork"), os.getpid() + 1)
    assert capsys.readouterr().err.splitlines() == [
        "profile in my prof; next: neuron-profile view 'my prof'",
        "profile in /elsewhere/prof; next: neuron-profile view /elsewhere/prof",
    ]
