"""`neuron-cache watch`: what happens in a cache, told once, whatever happens to the cache."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.events import Events, EventTail, LookupEventKind, events_path
from neurontools.cache.lock_owner import new_lock_owner
from neurontools.cache.pruning.prune import prepare_pruning
from neurontools.cache.pruning.rules import PruneRules
from neurontools.cache.walk import NotACacheError
from neurontools.cache.watch import (
    CacheWatcher,
    WatchEvent,
    WatchEventKind,
    WatchSummary,
    event_json,
    format_event,
    format_summary,
)
from neurontools.compiler.options import CompileError
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache
    from tests.cache.conftest import Tree

    Opener = Callable[..., CompileCache]

TRN1 = instance_type("trn1.2xlarge").device


def kinds(watch: CacheWatcher) -> list[tuple[str, str]]:
    return [(item.kind.value, item.module.partition("+")[0].removeprefix("MODULE_")) for item in watch.poll()]


def test_the_first_look_only_learns_what_is_there(tree: Tree) -> None:
    tree.done()
    tree.failed(graph="1234")
    watch = CacheWatcher(str(tree.root))
    assert watch.poll() == ()
    assert watch.poll() == ()
    assert watch.summary.entries == 2


def test_a_compile_that_is_under_way_is_reported_at_once(tree: Tree) -> None:
    entry = tree.entry()
    (entry / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
    watch = CacheWatcher(str(tree.root))
    (found,) = watch.poll()
    assert found.kind is WatchEventKind.COMPILING
    assert f"process {os.getpid()} on " in found.words
    assert watch.summary.compiling == 1


def test_compiles_hits_and_failures_are_reported_once(open_cache: Opener) -> None:
    cache = open_cache()
    watch = CacheWatcher(cache.root)
    assert watch.poll() == ()
    cache.get_or_compile(mlp(), TRN1, "mlp")
    there, compiled = watch.poll()
    assert there.kind is WatchEventKind.CACHE_FOUND
    assert compiled.kind is WatchEventKind.COMPILED
    assert compiled.path == cache.entry_of(mlp(), TRN1)
    assert compiled.seconds is not None
    assert f"process {os.getpid()} on " in compiled.words
    assert watch.poll() == ()
    cache.get_or_compile(mlp(), TRN1, "mlp")
    (hit,) = watch.poll()
    assert (hit.kind, hit.path, hit.seconds) == (WatchEventKind.HIT, compiled.path, compiled.seconds)
    with pytest.raises(CompileError):
        cache.get_or_compile(mlp(dtype="complex128"), TRN1, "mlp")
    (failed,) = watch.poll()
    assert failed.kind is WatchEventKind.FAILED
    assert failed.words.startswith("[NCC_EVRF004]")
    assert (watch.summary.compiled, watch.summary.failed, watch.summary.hits) == (1, 1, 1)


def test_what_comes_from_elsewhere_arrives_and_what_goes_is_removed(tree: Tree) -> None:
    tree.done()
    watch = CacheWatcher(str(tree.root))
    watch.poll()
    other = tree.done(graph="1234")
    assert kinds(watch) == [("arrived", "1234")]
    shutil.rmtree(other)
    assert kinds(watch) == [("removed", "1234")]
    prepare_pruning(scan(str(tree.root)), PruneRules(everything=True, grace_s=0.0)).carry_out()
    assert [kind for kind, _ in kinds(watch)] == ["removed"]
    shutil.rmtree(tree.root)
    assert kinds(watch) == [("cache gone", "")]
    tree.done()
    assert [kind for kind, _ in kinds(watch)] == ["cache found", "arrived"]


def test_a_compile_that_is_killed_is_reported_though_no_file_changes(tree: Tree) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    entry = tree.entry()
    watch = CacheWatcher(str(tree.root))
    watch.poll()
    from neurontools.base.procfs import read_start_ticks

    owner = replace(new_lock_owner(), pid=process.pid, start_ticks=read_start_ticks(process.pid) or 0)
    (entry / layouts.LOCK).write_bytes(owner.to_bytes())
    assert [kind for kind, _ in kinds(watch)] == ["compiling"]
    assert kinds(watch) == []
    process.kill()
    process.communicate()
    (found,) = watch.poll()
    assert found.kind is WatchEventKind.INTERRUPTED
    assert f"left by process {process.pid}" in found.words


def test_a_process_that_waits_for_a_compile_is_reported(tree: Tree) -> None:
    entry = tree.entry()
    (entry / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
    watch = CacheWatcher(str(tree.root))
    watch.poll()
    (entry / f"{layouts.WAITER_PREFIX}1").write_bytes(new_lock_owner().to_bytes())
    (found,) = watch.poll()
    assert (found.kind, f"process {os.getpid()} on " in found.words) == (WatchEventKind.WAITING, True)
    assert watch.summary.waiting == 1


def test_a_directory_with_other_things_is_refused(home: Path) -> None:
    (home / "photos").mkdir()
    (home / "photos" / "cat.jpg").touch()
    with pytest.raises(NotACacheError):
        CacheWatcher(str(home / "photos")).poll()


def test_events_are_followed_over_a_change_of_files_and_half_lines(home: Path) -> None:
    root = str(home / "cache")
    tail, events = EventTail(root), Events(root)
    assert list(tail.new()) == []
    events.add(LookupEventKind.HIT, "MODULE_1", 2.0)
    assert [event.module for event in tail.new()] == ["MODULE_1"]
    path = Path(events_path(root))
    line = path.read_text()
    with path.open("a") as file:
        file.write(line.replace("MODULE_1", "MODULE_2")[:-4])
    assert list(tail.new()) == []
    with path.open("a") as file:
        file.write(line.replace("MODULE_1", "MODULE_2")[-4:])
    assert [event.module for event in tail.new()] == ["MODULE_2"]
    with path.open("a") as file:
        file.write(line.replace("MODULE_1", "MODULE_3") + "nonsense\n")
    path.rename(f"{path}.old")
    path.write_text(line.replace("MODULE_1", "MODULE_4"))
    assert [event.module for event in tail.new()] == ["MODULE_3", "MODULE_4"]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (
            WatchEvent(0.0, WatchEventKind.HIT, "MODULE_1", "/c/MODULE_1", 1.5, "run 7"),
            "hit           1.50 s  MODULE_1  run 7",
        ),
        (
            WatchEvent(0.0, WatchEventKind.COMPILED, "MODULE_1", "/c/MODULE_1", 600.0),
            "compiled         10m  MODULE_1",
        ),
        (WatchEvent(0.0, WatchEventKind.CACHE_GONE, path="/c"), "cache gone            /c"),
        (
            WatchEvent(0.0, WatchEventKind.FAILED, "M", "/c/M", words="a\x1b[2Jb"),
            "failed                M  a\\u001b[2Jb",
        ),
    ],
)
def test_a_happening_is_a_line(item: WatchEvent, text: str) -> None:
    line = format_event(item)
    assert line.partition("  ")[2] == text
    assert json.loads(event_json(item))["event"] == item.kind.value


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (WatchSummary(), "0 compiling, 0 compiled, 0 failed, 0 hits saved 0.00 s, 0 entries"),
        (
            WatchSummary(5, 2, 600.0, 1, 4, 3, 1, 1.5),
            "2 compiling (longest 10m), 1 waiting, 4 compiled, 3 failed, 1 hit saved 1.50 s, 5 entries",
        ),
    ],
)
def test_a_summary_is_a_line(summary: WatchSummary, text: str) -> None:
    assert format_summary(summary) == text


def test_the_command_follows_a_cache_in_a_pipe_until_it_is_idle(home: Path, open_cache: Opener) -> None:
    command = [str(Path(sys.executable).parent / "neuron-cache"), "watch", "--json", "--interval", "0.1s"]
    with subprocess.Popen(
        [*command, "--until-idle", "2s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        cache = open_cache(str(home / "compile-cache"))
        for rows in range(1, 200):
            cache.get_or_compile(mlp(rows=rows), TRN1, "mlp")
            if process.poll() is not None or (rows > 1 and _is_told(process)):
                break
            time.sleep(0.1)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "compiled" in {json.loads(line)["event"] for line in out.splitlines()}


def _is_told(process: subprocess.Popen[str]) -> bool:
    import select

    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


def test_ctrl_c_ends_it_without_a_word(home: Path, open_cache: Opener) -> None:
    cache = open_cache(str(home / "compile-cache"))
    entry = Path(cache.entry_of(mlp(), TRN1))
    entry.mkdir(parents=True)
    (entry / layouts.LOCK).write_bytes(new_lock_owner().to_bytes())
    command = [str(Path(sys.executable).parent / "neuron-cache"), "watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "compiling" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_it_ends_when_its_reader_is_gone(home: Path) -> None:
    (home / "compile-cache").mkdir()
    command = [str(Path(sys.executable).parent / "neuron-cache"), "watch", "--interval", "1h"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(timeout=60)) == ("", 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--interval", "0"), "--interval of 0 seconds is out of range"),
        (("--interval", "2h"), "--interval of 7200 seconds is out of range"),
        (("--interval", "soon"), "soon"),
        (("--cache-dir", "s3://bucket/x"), "watch needs a local cache"),
    ],
)
def test_an_invalid_option_is_one_line(
    tool: Callable[..., subprocess.CompletedProcess[str]], arguments: tuple[str, ...], words: str
) -> None:
    done = tool("neuron-cache", "watch", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_line_of_json_has_null_for_what_is_not_known() -> None:
    whole = WatchEvent(1.2345, WatchEventKind.HIT, "MODULE_1", "/c/MODULE_1", 1.5, "run 7")
    assert json.loads(event_json(whole)) == {
        "unix_s": 1.234, "event": "hit", "module": "MODULE_1", "path": "/c/MODULE_1", "seconds": 1.5, "words": "run 7",
    }  # fmt: skip
    assert json.loads(event_json(WatchEvent(0.0, WatchEventKind.CACHE_GONE))) == {
        "unix_s": 0.0, "event": "cache gone", "module": None, "path": None, "seconds": None, "words": None,
    }  # fmt: skip


def test_hits_of_unknown_length_save_nothing() -> None:
    summary = WatchSummary()
    for seconds in (None, 1.5, None):
        summary.add(WatchEvent(0.0, WatchEventKind.HIT, "MODULE_1", "/c/MODULE_1", seconds))
    assert (summary.hits, summary.saved_s) == (3, 1.5)


def test_events_of_a_file_that_appears_later_are_read_from_its_start(home: Path) -> None:
    root = str(home / "later")
    tail = EventTail(root)
    assert list(tail.new()) == []
    Events(root).add(LookupEventKind.HIT, "MODULE_1")
    assert [event.module for event in tail.new()] == ["MODULE_1"]
