"""What runs did, from the events of their lookups."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import events
from neurontools.cache.entry_io import read_provenance
from neurontools.cache.events import Events, LookupEventKind
from neurontools.cache.stats import RunStats, format_runs, group_runs, sum_events
from neurontools.commands.cache import main
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neurontools.cache.store import CompileCache

TRN1 = instance_type("trn1.2xlarge").device


def test_a_hit_saves_what_the_compile_took(
    open_cache: Callable[..., CompileCache], capsys: pytest.CaptureFixture[str]
) -> None:
    entry = open_cache().get_or_compile(mlp(), TRN1, "mlp").entry
    open_cache().get_or_compile(mlp(), TRN1, "mlp")
    open_cache().get_or_compile(mlp(), TRN1, "mlp")
    origin = read_provenance(entry)
    assert origin is not None
    assert (origin.pid, origin.host) == (os.getpid(), os.uname().nodename)
    total = sum_events(Events(open_cache().root).read())
    assert (total.hits, total.misses) == (2, 1)
    assert total.saved_s == pytest.approx(2 * origin.compile_s, abs=1e-4)
    assert total.compiled_s == pytest.approx(origin.compile_s, abs=1e-4)
    assert main(["stats", "--json"]) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert (usage["hits"], usage["saved_s"]) == (2, total.saved_s)
    assert main(["show", entry]) == 0
    assert f"process {os.getpid()} of user" in capsys.readouterr().out


def test_a_run_that_only_met_cached_failures_shows_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = Events(str(home / "compile-cache"))
    for _ in range(3):
        written.add(LookupEventKind.REPLAY, "MODULE_1+e30acd3a")
    written.close()
    assert main(["stats", "--runs", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["replayed"], run["failures"], run["misses"]) == (3, 0, 0)
    assert main(["stats", "--runs"]) == 0
    assert "REPLAYED" in capsys.readouterr().out


def test_runs_are_distinguished(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(home / "compile-cache")
    for run in ("a", "b", "a"):
        monkeypatch.setattr(events, "_run_of", lambda _, run=run: run)
        written = Events(root)
        written.add(LookupEventKind.HIT, "MODULE_1", 2.0)
        written.add(LookupEventKind.WAIT, "MODULE_2", 0.5)
        written.close()
    found = {
        run.name: (run.hits, run.saved_s, run.waits, run.waited_s) for run in group_runs(Events(root).read())
    }
    assert found == {"a": (2, 4.0, 2, 1.0), "b": (1, 2.0, 1, 0.5)}
    os.makedirs(root)
    assert main(["stats", "--runs"]) == 0
    assert "2 runs recorded" in capsys.readouterr().out
    assert main(["stats", "--runs", "--json"]) == 0
    assert [run["run"] for run in json.loads(capsys.readouterr().out)] == ["a", "b"]


def test_a_narrow_table_of_runs_leaves_out_its_columns_one_by_one() -> None:
    run = RunStats("train", 1.7e9, 1.7e9 + 9, 1, 2, 3, 4, 5)
    heads = [format_runs([run], width).splitlines()[0].split() for width in range(140, 20, -1)]
    gone = [name for number, name in enumerate(heads[0]) if name not in heads[-1]]
    order = sorted(gone, key=lambda name: sum(name in head for head in heads))
    assert order == ["WAITED", "REPLAYED", "FAILED", "WAITS", "COMPILED", "SAVED", "STARTED"]
    assert heads[-1] == ["RUN", "HITS", "MISSES"]


def test_damaged_lines_and_a_full_file_are_no_trouble(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(home / "cache")
    monkeypatch.setattr(events, "_MAX_BYTES", 50)
    for number in range(3):
        written = Events(root)
        written.add(LookupEventKind.MISS, f"MODULE_{number}", 1.0)
        written.close()
    kept = [event.module for event in Events(root).read()]
    assert kept == ["MODULE_1", "MODULE_2"] or kept == ["MODULE_0", "MODULE_1", "MODULE_2"]
    with open(f"{events.counters_dir(root)}/events", "ab") as damaged:
        damaged.write(b"\xff\xfe nonsense\n1 a hit x MODULE\n1 a hit 1")
    assert [event.module for event in Events(root).read()] == kept


def test_a_file_of_events_that_is_just_full_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(module: str) -> int:
        written = Events(root)
        written.add(LookupEventKind.MISS, module, 1.0)
        written.close()
        return os.path.getsize(events.events_path(root))

    root = str(home / "cache")
    size = add("MODULE_1")
    monkeypatch.setattr(events, "_MAX_BYTES", size)
    assert add("MODULE_2") > size
    assert not os.path.exists(f"{events.events_path(root)}.old")
    add("MODULE_3")
    assert os.path.exists(f"{events.events_path(root)}.old")
    assert [event.module for event in Events(root).read()] == ["MODULE_1", "MODULE_2", "MODULE_3"]
