"""What runs did, from our own events and from logs of the real wrapper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cache import events
from neurontools.cache.events import EventKind, Events
from neurontools.cache.origin import read_origin
from neurontools.cache.runs import runs_of, total_of
from neurontools.cache.wrapper_log import count_lines
from neurontools.commands.cache import main
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.trees import CACHES
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache

TRN1 = instance_type("trn1.2xlarge").device


def test_a_hit_saves_what_the_compile_took(
    open_cache: Callable[..., CompileCache], capsys: pytest.CaptureFixture[str]
) -> None:
    entry = open_cache().get_or_compile(mlp(), TRN1, "mlp").entry
    open_cache().get_or_compile(mlp(), TRN1, "mlp")
    open_cache().get_or_compile(mlp(), TRN1, "mlp")
    origin = read_origin(entry)
    assert origin is not None
    assert (origin.pid, origin.host) == (os.getpid(), os.uname().nodename)
    total = total_of(Events(open_cache().root).read())
    assert (total.hits, total.misses) == (2, 1)
    assert total.saved_s == pytest.approx(2 * origin.compile_s, abs=1e-4)
    assert total.compiled_s == pytest.approx(origin.compile_s, abs=1e-4)
    assert main(["stats", "--json"]) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert (usage["hits"], usage["saved_s"]) == (2, total.saved_s)
    assert main(["show", entry]) == 0
    assert f"process {os.getpid()} of user" in capsys.readouterr().out


def test_runs_are_told_apart(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(home / "compile-cache")
    for run in ("a", "b", "a"):
        monkeypatch.setattr(events, "_run_of", lambda _, run=run: run)
        written = Events(root)
        written.add(EventKind.HIT, "MODULE_1", 2.0)
        written.add(EventKind.WAIT, "MODULE_2", 0.5)
        written.close()
    found = {
        run.name: (run.hits, run.saved_s, run.waits, run.waited_s) for run in runs_of(Events(root).read())
    }
    assert found == {"a": (2, 4.0, 2, 1.0), "b": (1, 2.0, 1, 0.5)}
    os.makedirs(root)
    assert main(["stats", "--runs"]) == 0
    assert "2 runs recorded" in capsys.readouterr().out
    assert main(["stats", "--runs", "--json"]) == 0
    assert [run["run"] for run in json.loads(capsys.readouterr().out)] == ["a", "b"]


def test_damaged_lines_and_a_full_file_are_no_trouble(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(home / "cache")
    monkeypatch.setattr(events, "_MAX_BYTES", 50)
    for number in range(3):
        written = Events(root)
        written.add(EventKind.MISS, f"MODULE_{number}", 1.0)
        written.close()
    kept = [event.module for event in Events(root).read()]
    assert kept == ["MODULE_1", "MODULE_2"] or kept == ["MODULE_0", "MODULE_1", "MODULE_2"]
    with open(f"{events.counters_dir(root)}/events", "ab") as damaged:
        damaged.write(b"\xff\xfe nonsense\n1 a hit x MODULE\n1 a hit 1")
    assert [event.module for event in Events(root).read()] == kept


def test_a_log_of_the_real_wrapper_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--from-log", str(CACHES / "wrapper-2023.log"), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert {
        name: counts[name] for name in ("hits", "misses", "replayed", "failures", "extracted", "waits")
    } == {
        "hits": 2,
        "misses": 2,
        "replayed": 1,
        "failures": 1,
        "extracted": 1,
        "waits": 1,
    }
    assert counts["waited_s"] == 120
    assert counts["compiled"] == {"MODULE_111+d41d8cd9": 2}
    assert counts["roots"] == ["/var/tmp/neuron-compile-cache"]
    assert (counts["recognised"], counts["lines"]) == (10, 13)


def test_a_log_may_come_through_a_pipe() -> None:
    command = [str(Path(sys.executable).parent / "neuron-cache"), "stats", "--from-log", "-"]
    with (CACHES / "wrapper-2023.log").open("rb") as log:
        shown = subprocess.run(command, stdin=log, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "compiled 2 times: MODULE_111+d41d8cd9" in shown.stdout


def test_our_own_lines_are_counted_alike(
    open_cache: Callable[..., CompileCache], caplog: pytest.LogCaptureFixture
) -> None:
    from neurontools.cache.logs import WrapperFormatter

    with caplog.at_level("INFO", logger="neurontools.cache"):
        open_cache().get_or_compile(mlp(), TRN1, "mlp")
        open_cache().get_or_compile(mlp(), TRN1, "mlp")
    counts = count_lines(WrapperFormatter().format(record).encode() for record in caplog.records)
    assert (counts.hits, counts.misses) == (1, 1)


def test_a_log_that_is_not_there_is_an_error_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--from-log", "/no/such/file"]) == 1
    assert capsys.readouterr().err == "error: /no/such/file: No such file or directory\n"


@given(st.lists(st.binary(max_size=80), max_size=10))
def test_any_bytes_are_a_log(lines: list[bytes]) -> None:
    assert count_lines(lines).lines == len(lines)
