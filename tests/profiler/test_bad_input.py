"""Profiles that are damaged or none: every verb says in one line what is wrong, and shows what is still readable."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.profile import main
from neurontools.profiler.capture.format import RECORD, read_meta
from tests.profiler.advice.programs import neff_bytes, perceptron

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

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


@pytest.mark.parametrize("make", [empty, foreign, missing, newer, damaged_description, hardware])
@pytest.mark.parametrize("verb", [*READERS, "sql", "check", "diff"])
def test_what_is_no_profile_is_one_line_and_a_hint(
    home: Path, maker: Maker, capsys: pytest.CaptureFixture[str], verb: str, make: Callable[[Path], str]
) -> None:
    maker.finished(home / "sound")
    maker.finished(home / "profile")
    reason = make(home)
    code = main(command(verb, "bad", "sound"))
    printed = capsys.readouterr()
    assert (code, printed.out) == (3 if verb == "check" else 1, "")
    error, hint = printed.err.splitlines()
    assert error.startswith("error: ")
    assert reason in error
    assert hint.startswith("hint: ")


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
    code = main([*command(verb, str(profile_dir), ""), *part])
    printed = capsys.readouterr()
    assert (code, printed.out) == (3 if verb == "check" else 1, "")
    error, hint = printed.err.splitlines()
    assert error == f"error: {reason}"
    assert hint.startswith("hint: ")


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
