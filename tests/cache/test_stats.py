"""Sums over a root: they agree with a scan, and with what goes, is held and is shared while they are made.

What runs did, from the events of their lookups.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.cache import events, layouts, locks
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.entry_io import read_provenance
from neurontools.cache.events import Events, LookupEventKind
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.locks import hold, release
from neurontools.cache.stats import RunStats, Stats, collect_stats, format_runs, group_runs, sum_events
from neurontools.cache.walk import walk
from neurontools.commands.cache import main
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.trees import lay_out
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neurontools.cache.store import CompileCache
    from tests.cache.conftest import Tree


def sums_of(root: Path) -> Stats:
    return collect_stats(walk(str(root)), locks.in_use_checker(str(root)))


def test_sums_of_all_layouts_are_those_of_a_scan(tmp_path: Path) -> None:
    root = lay_out("generations", tmp_path / "cache")
    found, sums = scan(str(root)), sums_of(root)
    assert sums.total.count == len(found.entries)
    assert sums.total.size_bytes == sum(entry.size_bytes for entry in found.entries)
    assert sums.skipped == found.skipped
    for kind in CacheLayout:
        sizes = [entry.size_bytes for entry in found.entries if entry.layout is kind]
        assert [(group.count, group.size_bytes) for group in sums.layouts if group.name == kind] == [
            (len(sizes), sum(sizes))
        ] * bool(sizes)
    assert sum(group.count for group in sums.states) == sums.total.count
    assert sum(group.size_bytes for group in sums.compilers) == sums.total.size_bytes
    assert "unknown" in {group.name for group in sums.compilers}


def test_what_is_held_or_locked_is_active_and_not_reclaimable(tree: Tree) -> None:
    loaded, locked, _ = tree.done(), tree.entry(graph="2"), tree.done(graph="3")
    (locked / layouts.LOCK).touch()
    held = hold(str(loaded))
    assert held is not None
    try:
        sums = sums_of(tree.root)
    finally:
        release(held)
    assert (sums.total.count, sums.total.active) == (3, 2)
    sizes = {entry.path: entry.size_bytes for entry in scan(str(tree.root)).entries}
    assert sums.total.reclaimable_bytes == sums.total.size_bytes - sizes[str(loaded)] - sizes[str(locked)]
    assert sums_of(tree.root).total.active == 1


def test_who_holds_an_entry_is_seen_without_the_kernels_list(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = hold(str(tree.done()))
    assert held is not None
    tree.done(graph="3")
    monkeypatch.setattr(locks, "_FIRST_NAMESPACE", "pid:[1]")
    try:
        assert sums_of(tree.root).total.active == 1
    finally:
        release(held)


def test_an_entry_that_goes_after_the_listing_is_left_out(tree: Tree) -> None:
    tree.done()
    gone = tree.done(graph="2")
    found = walk(str(tree.root))
    shutil.rmtree(gone)
    sums = collect_stats(found, locks.in_use_checker(str(tree.root)))
    assert (sums.total.count, sums.skipped, sums.unread) == (1, 0, 0)


def test_what_cannot_be_read_is_distinguished_from_what_no_layout_knows(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.done()
    closed = [str(tree.done(graph="2")), str(tree.done(compiler="2.1+x").parent)]
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path in closed:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert main(["verify"]) == 1
    assert capsys.readouterr().out.count("the directory cannot be read") == 2
    for words in (["ls"], ["stats"], ["stats"]):
        assert main(words) == 0
        assert "2 directories cannot be read" in capsys.readouterr().out
    assert main(["ls", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (len(shown["entries"]), shown["skipped"], shown["unread"]) == (1, 0, 2)


def test_a_file_of_two_entries_counts_once(tree: Tree) -> None:
    first, second = tree.done(), tree.entry(graph="2", files={layouts.DONE: b""})
    before = sums_of(tree.root).total.size_bytes
    os.link(first / layouts.NEFF, second / layouts.NEFF)
    assert sums_of(tree.root).total.size_bytes == before


def test_progress_is_reported_for_many_entries(tree: Tree) -> None:
    tree.done()
    told: list[tuple[int, int]] = []
    collect_stats(
        walk(str(tree.root)), locks.in_use_checker(str(tree.root)), lambda *numbers: told.append(numbers)
    )
    assert told == [(0, 1)]


@given(st.lists(st.sampled_from([*State]), min_size=1, max_size=12))
@settings(max_examples=15)
def test_groups_add_up_whatever_states_there_are(
    tmp_path_factory: pytest.TempPathFactory, states: list[State]
) -> None:
    files = {
        State.DONE: (layouts.NEFF, layouts.DONE),
        State.FAILED: (layouts.LOG,),
        State.LOCKED: (layouts.LOCK,),
        State.TODO: (layouts.GRAPH,),
        State.INTERRUPTED: (layouts.NEFF,),
    }
    root = tmp_path_factory.mktemp("cache")
    for number, state in enumerate(states):
        entry = root / f"neuronxcc-2.{number % 3}+1" / f"MODULE_{number}+e30acd3a"
        entry.mkdir(parents=True)
        for name in files[state]:
            (entry / name).write_bytes(b"." * number)
    sums = sums_of(root)
    assert {group.name: group.count for group in sums.states} == {s: states.count(s) for s in set(states)}
    assert sums.total.active == states.count(State.LOCKED)
    for groups in (sums.states, sums.compilers, sums.layouts):
        assert sum(group.size_bytes for group in groups) == sums.total.size_bytes
        assert sum(group.reclaimable_bytes for group in groups) == sums.total.reclaimable_bytes


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
