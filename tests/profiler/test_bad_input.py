"""Profiles that are damaged or none: every verb says in one line what is wrong, and shows what is still readable.

Pipes, sockets, devices and directories in place of files: each is refused in a line, and nothing waits for them.
"""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING

import duckdb
import pytest

from neurontools.commands.profile import main
from neurontools.profiler.capture.format import RECORD, read_meta
from tests.profiler.advice.programs import neff_bytes, perceptron

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

    Tool = Callable[..., subprocess.CompletedProcess[str]]

READERS = ("summary", "top", "steps", "gaps", "critical-path", "roofline", "ranks", "advise")
QUERY = ("sql", "-q", "SELECT count(*) FROM Instruction")
LIMIT = ("check", "--fail-if", "total_time>1us")


def command(verb: str, directory: str, other: str) -> list[str]:
    """Return a command line of a verb about a profile; `other` is a sound one."""
    match verb:
        case "sql":
            pytest.importorskip("duckdb")
            return [*QUERY, "-d", directory]
        case "check":
            return [*LIMIT, directory]
        case "diff":
            return ["diff", other, directory]
    return [verb, directory]


def empty(home: Path) -> str:
    (home / "bad").mkdir()
    return "bad is empty: the run used no NeuronCore or was not profiled"


def foreign(home: Path) -> str:
    (home / "bad").mkdir()
    (home / "bad" / "notes.txt").write_text("none")
    return "bad is not a profile: it has no meta.json"


def missing(home: Path) -> str:
    return "no profile at bad: no such directory"


def newer(home: Path) -> str:
    os.rename(home / "profile", home / "bad")
    (meta,) = (home / "bad").glob("*/meta.json")
    meta.write_text(re.sub(r'"schema": \d+', '"schema": 999', meta.read_text()))
    return "meta.json has profile schema 999, supported is "


def damaged_description(home: Path) -> str:
    os.rename(home / "profile", home / "bad")
    (meta,) = (home / "bad").glob("*/meta.json")
    meta.write_text("{")
    return "meta.json is damaged: "


def hardware(home: Path) -> str:
    (home / "bad").mkdir()
    (home / "bad" / "a.ntff").write_bytes(b"NTFF")
    return "a.ntff is a trace of real Neuron hardware"


def refused(capsys: pytest.CaptureFixture[str], verb: str, words: list[str]) -> str:
    """Return the error of a command that prints nothing but it and a hint."""
    code = main(words)
    printed = capsys.readouterr()
    assert (code, printed.out) == (3 if verb == "check" else 1, "")
    error, hint = printed.err.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return error.removeprefix("error: ")


@pytest.mark.parametrize("make", [empty, foreign, missing, newer, damaged_description, hardware])
@pytest.mark.parametrize("verb", [*READERS, "sql", "check", "diff"])
def test_what_is_no_profile_is_one_line_and_a_hint(
    home: Path, maker: Maker, capsys: pytest.CaptureFixture[str], verb: str, make: Callable[[Path], str]
) -> None:
    maker.finished(home / "sound")
    maker.finished(home / "profile")
    reason = make(home)
    assert reason in refused(capsys, verb, command(verb, "bad", "sound"))


@pytest.mark.parametrize("verb", ["top", "steps", "gaps", "roofline", "sql", "check"])
def test_the_readable_part_of_a_damaged_file_is_shown_with_a_warning(
    profile_dir: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    (records,) = profile_dir.glob("*/events-*.bin")
    pid = read_meta(str(records.parent)).pid
    data = bytearray(records.read_bytes())
    data[3 * RECORD.size : 5 * RECORD.size] = b"\xff" * (2 * RECORD.size)
    records.write_bytes(data[:-7])
    code = main(command(verb, str(profile_dir), ""))
    printed = capsys.readouterr()
    assert code == (verb == "check")
    assert printed.err.splitlines() == [
        f"warning: process {pid}: 2 records damaged and left out",
        f"warning: process {pid}: {records.name} ends within a record, so it is cut: records after that are missing",
    ]
    assert printed.out


def test_the_summary_lists_damage_itself(profile_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (neff,) = profile_dir.glob("*/neff_*.neff")
    os.truncate(neff, 500)
    assert main(["summary", str(profile_dir)]) == 0
    printed = capsys.readouterr()
    assert "  warning: no device records of NEFF " in printed.out
    assert printed.err == ""


@pytest.mark.parametrize("verb", ["top", "roofline", "critical-path", "advise"])
def test_without_a_readable_neff_verbs_about_the_device_say_which_one(
    profile_dir: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    (neff,) = profile_dir.glob("*/neff_*.neff")
    os.truncate(neff, 500)
    assert main([verb, str(profile_dir)]) == 1
    printed = capsys.readouterr()
    warning, error, hint = printed.err.splitlines()
    number = neff.stem.removeprefix("neff_")
    assert warning.startswith(f"warning: no device records of NEFF {number}: not a NEFF: 500 bytes")
    assert error.startswith("error: the profile has no ")
    assert hint.startswith("hint: ")
    assert printed.out == ""


@pytest.mark.parametrize("verb", [*READERS, "sql", "check"])
@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (("--from", "1s"), "no events match the filters"),
        (("--steps", "6-9"), "no step 6 to 9: the profile has 5 steps"),
        (("--nc", "7"), "nothing happened on these NeuronCores: the profile has NC0, NC1"),
    ],
)
def test_a_part_outside_of_the_profile_is_one_line_and_a_hint(
    profile_dir: Path, capsys: pytest.CaptureFixture[str], verb: str, part: tuple[str, ...], reason: str
) -> None:
    assert refused(capsys, verb, [*command(verb, str(profile_dir), ""), *part]) == reason


@pytest.mark.parametrize("verb", [*READERS, "sql", "check", "diff"])
def test_a_missing_rank_is_named_where_ranks_count_and_hinders_no_other_verb(
    home: Path,
    maker: Maker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
) -> None:
    neff = neff_bytes(perceptron(256, 256, layers=2))
    monkeypatch.setattr(maker, "neff", lambda: neff)
    for rank in (0, 2):
        capture = maker.worker(home / "ranks", rank, 3)
        maker.train(capture)
        capture.on_close()
    code = main(command(verb, "ranks", "ranks"))
    printed = capsys.readouterr()
    assert code == (verb == "check")
    assert printed.err == ""
    assert ("missing in the profile: rank 1" in printed.out) == (verb in {"ranks", "summary"})


KINDS = ("pipe", "socket", "device", "directory", "link to a pipe", "link to a device")


def make_special(path: Path, kind: str) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            here = os.open(path.parent, os.O_RDONLY)  # the path of a socket is short
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
        case "directory":
            path.mkdir()
        case "link to a pipe":
            os.mkfifo(path.with_name(f"{path.name}.pipe"))
            path.symlink_to(f"{path.name}.pipe")
        case _:
            path.symlink_to("/dev/zero" if kind == "device" else "/dev/full")


def check_one_line(run: subprocess.CompletedProcess[str], exit_code: int | None = None) -> None:
    assert "Traceback" not in run.stderr
    assert exit_code is None or run.returncode == exit_code, run
    assert len([line for line in run.stderr.splitlines() if line.startswith("error: ")]) <= 1
    if run.returncode:
        assert run.stderr.startswith("error: "), run


COMMANDS = (
    ("neuron-profile", "top", "FILE.json"),
    ("neuron-profile", "summary", "FILE"),
    ("neuron-profile", "view", "FILE.json.gz", "--output-format", "csv", "--output-file", "o.csv"),
    ("neuron-profile", "diff", "FILE.json", "FILE.json"),
    ("neuron-profile", "what-if", "FILE.neff", "--batch", "2"),
    ("neuron-packager", "info", "FILE.neff"),
    ("neuron-packager", "unpack", "FILE.neff"),
    ("neuron-cache", "copy", "--from", "FILE.tar.gz"),
    ("neuron-ls", "--source", "FILE.jsonl"),
    ("neuron-top", "--once", "--source", "FILE.jsonl"),
    ("neurontools", "scenario", "replay", "FILE.jsonl"),
    ("neurontools", "scenario", "check", "./FILE.yaml"),
    ("neuron-monitor", "-c", "FILE.json"),
    ("nccom-test", "allr", "-r", "2", "--custom-replica-groups", "FILE.json", "--instance", "trn1.32xlarge"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_file_that_is_no_file_is_refused_in_a_line(
    home: Path, tool: Tool, command: tuple[str, ...]
) -> None:
    for number, kind in enumerate(KINDS):
        (name,) = {word for word in command if "FILE" in word}
        path = home / name.replace("FILE", f"f{number}")
        make_special(path, kind)
        words = (str(path) if "FILE" in word else word for word in command)
        run = tool(*words, cwd=home)
        check_one_line(run)
        is_cache = kind == "directory" and command[1] == "copy"  # a directory is a cache to copy from
        assert run.returncode or is_cache, (kind, run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_with_special_files_is_read_without_them(
    home: Path, tool: Tool, maker: Maker, kind: str
) -> None:
    maker.finished(home / "prof")
    (meta,) = (home / "prof").rglob("meta.json")
    for path in sorted(meta.parent.iterdir()):
        if path.name.startswith(("models", "strings", "neff_", "events", "meta")):
            aside = home / "aside"
            path.rename(aside)
            make_special(path, kind)
            check_one_line(tool("neuron-profile", "summary", "prof", cwd=home))
            path.rmdir() if kind == "directory" else path.unlink()
            aside.rename(path)
            path.with_name(f"{path.name}.pipe").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Instruction", "Instruction_1", "Summary", "Metadata"])
def test_a_table_that_is_no_file_is_left_out(home: Path, tool: Tool, kind: str, name: str) -> None:
    tables = home / "tables"
    tables.mkdir()
    query = "SELECT i AS start_ts, 1 AS duration_ns, 'mm' AS hlo_name FROM range(9) t(i)"
    for table in {"Instruction", "DmaPacketAggregated"} - {name}:
        duckdb.sql(f"COPY ({query}) TO '{tables}/{table}.parquet' (FORMAT parquet)")
    make_special(tables / f"{name}.parquet", kind)
    run = tool("neuron-profile", "summary", "tables", cwd=home)
    check_one_line(run, 0)
    what = f"the table {name}" if name in {"Summary", "Metadata"} else f"{name}.parquet"
    assert f"warning: {what} is left out: " in run.stdout
