"""A disk that is full: the message names the file and the reason, and nothing that is half written stays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.capture.observer import Capture
from neurontools.profiler.capture.settings import CaptureOptions
from neurontools.profiler.exchange.export import export
from neurontools.profiler.formats import TraceFormat

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.trace.trace import Trace


def run_limited(blocks: int, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose files may have some 512-byte blocks; more fails as on a full disk, with another reason."""
    script = os.path.join(os.path.dirname(sys.executable), command[0])
    return subprocess.run(
        ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", script, *command[1:]],
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # compiled modules would be cut off
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.mark.parametrize("form", list(TraceFormat))
@pytest.mark.parametrize("exists", [False, True], ids=["new", "old"])
def test_an_export_that_fails_leaves_what_was_there(
    home: Path, maker: Maker, form: TraceFormat, exists: bool
) -> None:
    maker.finished(home / "prof")
    output = home / "o"
    if exists and form in {TraceFormat.PARQUET, TraceFormat.TENSORBOARD}:
        output.mkdir()
        (output / "Instruction.parquet").write_text("old")
    elif exists:
        output.write_text("old")
    before = {
        path: path.is_dir() or path.read_text() for path in (output, *output.rglob("*")) if path.exists()
    }
    words = ("view", "prof", "--output-format", form.value, "--output-file", "o")
    run = run_limited(0, "neuron-profile", *words, cwd=home)
    assert run.returncode == 1
    assert run.stderr.startswith("error: cannot write o: File too large\nhint: "), run.stderr
    after = {
        path: path.is_dir() or path.read_text() for path in (output, *output.rglob("*")) if path.exists()
    }
    assert after == before
    assert not [name for name in os.listdir(home) if name.startswith(".tmp")]


def test_tables_and_logs_join_those_of_before(home: Path, trace: Trace) -> None:
    for form in (TraceFormat.PARQUET, TraceFormat.TENSORBOARD):
        output = home / "above" / form.value
        export(trace, form, str(output))
        names = {path.relative_to(output) for path in output.rglob("*")}
        (output / "mine.txt").write_text("x")
        export(trace, form, str(output))
        assert {path.relative_to(output) for path in output.rglob("*") if path.name != "mine.txt"} == names
        assert (output / "mine.txt").read_text() == "x"


@pytest.mark.parametrize(("blocks", "whole"), [(0, False), (40, True)])
def test_a_recording_has_whole_lines_or_is_not_there(home: Path, blocks: int, whole: bool) -> None:
    words = ("scenario", "record", "memory-leak", "--offline", "-o", "r.jsonl", "--limit", "500")
    run = run_limited(blocks, "neurontools", *words, cwd=home)
    assert run.returncode == 1
    assert run.stderr.startswith("error: cannot write r.jsonl: File too large\nhint: free space"), run.stderr
    assert (home / "r.jsonl").exists() is whole
    if whole:
        assert (home / "r.jsonl").read_bytes().endswith(b"}\n")


def test_a_recording_into_a_device_that_is_full_leaves_the_device(home: Path) -> None:
    words = ("scenario", "record", "memory-leak", "--offline", "-o", "/dev/full", "--force", "--limit", "1")
    run = run_limited(9999, "neurontools", *words, cwd=home)
    assert run.stderr.startswith("error: cannot write /dev/full: No space left on device"), run.stderr
    assert os.path.exists("/dev/full")


def test_a_profile_that_cannot_begin_is_one_error(
    home: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = maker.meta(CaptureOptions())
    monkeypatch.setattr(type(meta), "write", lambda *_: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    with pytest.raises(ProfileError, match=r"cannot write a profile to .*: No space left on device"):
        Capture(str(home / "prof"), meta)
    assert os.listdir(home / "prof") == []


def test_neuron_run_tries_the_disk_before_the_program(home: Path) -> None:
    run = run_limited(0, "neuron-run", "--profile", "a/b", "--", sys.executable, "-c", "print(1)", cwd=home)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("error: cannot write a profile to a/b: File too large\n"), run.stderr
    assert not (home / "a").exists()
