from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.analysis.dependencies import event_details
from neurontools.profiler.analysis.summary import report, to_json, to_text
from neurontools.profiler.capture import format as capture_format
from neurontools.profiler.capture.format import ProfileError, read_meta
from neurontools.profiler.capture.observer import describe_run
from neurontools.profiler.capture.settings import CaptureOptions
from neurontools.profiler.exchange.export_timeline import layout
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.reader import open_captures
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker


def refused(path: Path) -> str:
    with pytest.raises(ProfileError) as error:
        open_captures(str(path))
    assert error.value.remedy
    assert "\n" not in error.value.message
    return error.value.message


def test_what_is_not_a_profile_is_named_with_its_reason(home: Path) -> None:
    (home / "empty").mkdir()
    (home / "other").mkdir()
    (home / "other" / "notes.txt").write_text("x")
    (home / "notes.txt").write_text("x")
    assert "no such directory" in refused(home / "missing")
    assert "is empty" in refused(home / "empty")
    assert "is not a profile" in refused(home / "other")
    assert "is a file" in refused(home / "notes.txt")


def test_a_real_ntff_is_refused_by_name(home: Path) -> None:
    (home / "real").mkdir()
    (home / "real" / "profile.ntff").write_bytes(b"\0" * 64)
    for path in (home / "real", home / "real" / "profile.ntff"):
        assert "profile.ntff is a trace of real Neuron hardware" in refused(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("started_ns", "Infinity"),
        ("started_ns", "1e400"),
        ("started_ns", str(10**30)),
        ("ended_ns", "NaN"),
        ("instance_type", "[]"),
        ("peaks", '{"clock_hz": Infinity}'),
        ("peaks", '{"clock_hz": 1e308}'),
        ("cores", '["a"]'),
        ("session", "[[1, 2]]"),
        ("command", "[" * 5000 + "]" * 5000),
    ],
)
def test_a_value_that_no_capture_has_is_damage(profile_dir: Path, name: str, value: str) -> None:
    path = next(profile_dir.glob("*/meta.json"))
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, name: "HERE"}).replace('"HERE"', value))
    assert "is damaged" in refused(profile_dir)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ("[]", "is damaged"),
        ('{"format": "other", "schema": 1}', "is not part of a neurontools profile"),
        ('{"format": "neurontools-profile", "schema": 9, "record_bytes": 40}', "schema 9, supported is 2"),
        ('{"format": "neurontools-profile", "schema": 2, "record_bytes": 40}', "is damaged: ValidationError"),
    ],
)
def test_a_bad_description_is_explained(profile_dir: Path, content: str, reason: str) -> None:
    next(profile_dir.glob("*/meta.json")).write_text(content)
    assert reason in refused(profile_dir)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("link", 99),
        ("track", 200),
        ("track", capture_format.Track.TENSOR),
        ("duration_ns", -5),
        ("duration_ns", 2**62),
        ("start_ns", -1),
        ("start_ns", 2**62),
    ],
)
def test_a_damaged_record_is_left_out_and_counted(profile_dir: Path, field: str, value: int) -> None:
    before = load(str(profile_dir))
    path = next(profile_dir.glob("*/events-000000.bin"))
    events = np.fromfile(path, dtype=capture_format.record_dtype())
    events[field][3] = value
    events.tofile(path)
    found = load(str(profile_dir))
    reason = "damaged" if field in {"link", "track"} else "with times outside of the run"
    assert found.problems == (f"process {os.getpid()}: 1 record {reason} and left out",)
    assert sum(len(runs.number) for runs in found.runs) == sum(len(runs.number) for runs in before.runs) - 1
    assert found.end_ns <= before.end_ns


def test_a_clock_that_runs_backwards_is_named(profile_dir: Path) -> None:
    path = next(profile_dir.glob("*/events-000000.bin"))
    events = np.fromfile(path, dtype=capture_format.record_dtype())
    runs = np.flatnonzero((events["track"] == capture_format.Track.MODEL) & (events["nc"] == 0))
    events["start_ns"][: runs[2]] += 5 * 10**9
    events.tofile(path)
    (problem,) = load(str(profile_dir)).problems
    assert problem == (
        f"process {os.getpid()}: the clock ran backwards 2 times: events around those times may be out of order"
    )


@pytest.mark.parametrize("line", ["{", "{}", '{"model": 5}', "[]", "1" * 5000])
def test_a_damaged_line_about_a_model_costs_its_records_only(profile_dir: Path, line: str) -> None:
    path = next(profile_dir.glob("*/models.jsonl"))
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([line, *others]) + "\n")
    found = load(str(profile_dir))
    assert found.problems == (
        f"process {os.getpid()}: 1 line of models.jsonl damaged",
        f"process {os.getpid()}: 6 records damaged and left out",
    )
    assert {row.nc for row in found.rows} == {1 - json.loads(first)["nc"]}


@pytest.mark.parametrize("name", ["models.jsonl", "strings.jsonl"])
def test_an_unfinished_line_of_a_killed_process_is_ignored(profile_dir: Path, name: str) -> None:
    before = load(str(profile_dir)).event_count
    path = next(profile_dir.glob(f"*/{name}"))
    path.write_text(path.read_text() + '{"model": 2, "na')
    found = load(str(profile_dir))
    assert found.problems[0].startswith(f"process {os.getpid()}: {name} ends within a line, so it is cut: ")
    meta = next(profile_dir.glob("*/meta.json"))
    replace(read_meta(str(meta.parent)), ended_ns=0).write(str(meta.parent))
    assert load(str(profile_dir)).event_count == before
    assert not any(name in problem for problem in load(str(profile_dir)).problems)


@pytest.mark.parametrize(
    ("name", "missing", "left"),
    [
        ("models.jsonl", "executions", [capture_format.Track.HOST]),
        (
            "strings.jsonl",
            "events of the host and of memory",
            [capture_format.Track.RUNTIME, capture_format.Track.HARDWARE, capture_format.Track.MODEL],
        ),
    ],
)
def test_a_missing_file_of_names_costs_what_needs_it(
    home: Path, maker: Maker, name: str, missing: str, left: list[capture_format.Track]
) -> None:
    capture = maker.capture(home / "p")
    maker.train(capture)
    capture.host.on_host_event(
        (HostEvent.MARK, maker.start_ns, maker.start_ns, capture_format.NO_CORE, "epoch 1", "t.py:3", 0, 0)
    )
    capture.on_close()
    next((home / "p").glob(f"*/{name}")).unlink()
    found = load(str(home / "p"))
    assert found.problems[0] == (
        f"process {os.getpid()}: cannot read {name}: No such file or directory; {missing} are missing"
    )
    assert [row.track for row in found.rows if row.track not in capture_format.DEVICE_TRACKS] == left


def test_a_tail_of_zeros_after_a_power_cut_is_ignored(profile_dir: Path) -> None:
    path = next(profile_dir.glob("*/events-000000.bin"))
    before = load(str(profile_dir)).event_count
    path.write_bytes(path.read_bytes() + bytes(10 * capture_format.RECORD.size + 5))
    assert load(str(profile_dir)).event_count == before


def test_a_process_directory_and_its_event_file_open_too(profile_dir: Path) -> None:
    process = next(profile_dir.iterdir())
    for path in (process, process / "events-000000.bin", process / "meta.json"):
        assert load(str(path)).event_count == load(str(profile_dir)).event_count


def test_processes_of_one_boot_share_the_monotonic_clock_others_meet_in_unix_time(
    home: Path, maker: Maker
) -> None:
    for _ in range(3):
        maker.finished(home / "p", steps=1)
    first, second, third = sorted((home / "p").iterdir())
    one = read_meta(str(first))
    one = replace(one, session="1")
    one.write(str(first))
    replace(one, pid=2, started_unix_ns=one.started_unix_ns + 1).write(str(second))
    replace(one, pid=3, boot_id="other", started_unix_ns=one.started_unix_ns + 10**9).write(str(third))
    found = load(str(home / "p"))
    starts = {row.pid: row.events.start_ns for row in found.rows if row.track is capture_format.Track.RUNTIME}
    assert starts == {one.pid: 0, 2: 0, 3: 10**9}


def test_workers_are_named_by_their_rank(home: Path, maker: Maker) -> None:
    for _ in range(2):
        maker.finished(home / "p", steps=1)
    pids = {}
    starts = {process: read_meta(str(process)).started_unix_ns for process in (home / "p").iterdir()}
    for rank, process in enumerate(sorted(starts, key=starts.__getitem__, reverse=True)):
        pids[rank] = 100 + rank
        replace(read_meta(str(process)), pid=pids[rank], rank=rank, world_size=2).write(str(process))
    found = load(str(home / "p"))
    what = report(found)
    text = to_text(what)
    for rank, pid in pids.items():
        assert f"  rank {rank} (pid {pid}), cores 0,1: python train.py" in text
        assert re.search(rf"^  rank {rank} NC0 ", text, re.MULTILINE)
    assert [core["rank"] for core in to_json(what)["cores"]] == [0, 1]
    groups, _ = layout(found)
    assert "rank 1 (pid 101) NC0 (device clock, modelled)" in {group.name for group in groups}
    assert ("process", "rank 0 (pid 100), NC0 (core 0 of the machine)") in event_details(found, 0)


@pytest.mark.parametrize(
    ("environ", "rank", "workers"),
    [
        ({}, None, 1),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None, 1),
        ({"RANK": "3", "WORLD_SIZE": "4"}, 3, 4),
        ({"RANK": "x", "WORLD_SIZE": "4"}, None, 1),
    ],
)
def test_the_rank_is_that_of_torchrun(
    environ: dict[str, str], rank: int | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    runtime = SimpleNamespace(instance=instance_type("trn1.2xlarge"), lnc=1, cores=(0,))
    described = describe_run(runtime, CaptureOptions())  # type: ignore[arg-type]
    assert (described.rank, described.world_size) == (rank, workers)


def test_a_description_survives_being_stored(profile_dir: Path) -> None:
    process = next(profile_dir.iterdir())
    meta = read_meta(str(process))
    assert json.loads((process / "meta.json").read_text())["clocks"].keys() == {"wall", "device"}
    meta.write(str(process))
    assert read_meta(str(process)) == meta
