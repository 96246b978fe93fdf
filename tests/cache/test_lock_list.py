"""`neuron-cache locks`, waiters that are seen, give up, and take over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cache import layouts, lookup
from neurontools.cache.entry_io import prepare_entry
from neurontools.cache.events import Events
from neurontools.cache.lock_list import HeldLock
from neurontools.cache.lock_owner import Liveness, Waiter, list_waiters, new_lock_owner
from neurontools.cache.locks import LockState, examine_lock
from neurontools.cache.stats import sum_events
from neurontools.cache.store import CompileCache
from neurontools.commands.cache import main
from neurontools.errors import UsageError
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.conftest import Tree  # noqa: TC001  needed by pytest
from tests.cache.entries import entry_path
from tests.compiler.graphs import mlp

TRN1 = instance_type("trn1.2xlarge").device
Opener = Callable[..., CompileCache]

_COMPILER = """
import sys
sys.path.append(sys.argv[1])
from neurontools.compiler import compile as compiler
from neurontools.cache.store import CompileCache
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import mlp
compile_graph = compiler.compile_graph
def slow(*arguments):
    print("compiling", flush=True)
    sys.stdin.readline()
    return compile_graph(*arguments)
compiler.compile_graph = slow
result = CompileCache.open().get_or_compile(mlp(), instance_type("trn1.2xlarge").device, "mlp")
print("hit" if result.hit else "miss", flush=True)
"""


@pytest.fixture
def compiling() -> Iterator[subprocess.Popen[str]]:
    """A process that holds an entry's lock until it gets a line or dies."""
    command = [sys.executable, "-c", _COMPILER, str(Path(__file__).parents[2])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "compiling\n"
    yield process
    process.kill()
    process.communicate()


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["locks", "--json"]) == 0
    rows: list[dict[str, object]] = json.loads(capsys.readouterr().out)["locks"]
    return rows


def test_a_lock_names_its_process_while_it_lives_and_after(
    compiling: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = listed(capsys)
    assert (row["state"], row["pid"], row["host"]) == ("alive", compiling.pid, os.uname().nodename)
    assert main(["prune", "--locks", "0", "-y"]) == 0
    assert len(listed(capsys)) == 1
    compiling.send_signal(signal.SIGKILL)
    compiling.wait()
    (row,) = listed(capsys)
    assert (row["state"], row["stale"]) == ("dead", True)
    assert main(["prune", "--locks", "4h", "-y"]) == 0
    assert listed(capsys) == []


def test_a_waiter_is_seen_and_takes_over_from_the_dead(
    compiling: subprocess.Popen[str],
    open_cache: Opener,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "neurontools.cache")
    monkeypatch.setattr(lookup, "_SHORT_WAIT_S", 0.0)
    cache = open_cache()
    entry = entry_path(cache, mlp())
    announce = Waiter.announce

    def announce_and_kill(waiter: Waiter) -> None:
        announce(waiter)
        assert [owner.pid for owner in list_waiters(entry)] == [os.getpid()]
        compiling.kill()
        compiling.wait()

    monkeypatch.setattr(Waiter, "announce", announce_and_kill)
    assert not cache.get_or_compile(mlp(), TRN1, "mlp").hit
    assert f"Took over {entry} from process {compiling.pid}" in caplog.text
    assert list_waiters(entry) == ()
    assert not [name for name in os.listdir(entry) if name.startswith(layouts.WAITER_PREFIX)]
    assert sum_events(Events(cache.root).read()).waits == 1


def test_a_wait_can_be_limited(
    compiling: subprocess.Popen[str], open_cache: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(NEURONTOOLS_CACHE_LOCK_TIMEOUT="0.05s")
    result = cache.get_or_compile(mlp(), TRN1, "mlp")
    assert (result.hit, result.entry, result.neff.graph) == (False, "", mlp())
    assert f"for process {compiling.pid} on" in caplog.text
    assert "Compiling without the cache." in caplog.text
    assert compiling.communicate("go on\n")[0] == "miss\n"
    assert cache.get_or_compile(mlp(), TRN1, "mlp").hit


def test_a_timeout_that_is_none_is_refused(open_cache: Opener) -> None:
    with pytest.raises(UsageError, match="invalid duration"):
        open_cache(NEURONTOOLS_CACHE_LOCK_TIMEOUT="soon")


def test_marks_of_killed_waiters_do_not_count_and_go(tree: Tree) -> None:
    path = tree.entry()
    dead = replace(new_lock_owner(), start_ticks=1)
    (path / f"{layouts.WAITER_PREFIX}1-a").write_bytes(dead.to_bytes())
    (path / f"{layouts.WAITER_PREFIX}2-b").write_bytes(b"nonsense")
    assert list_waiters(str(path)) == ()
    prepare_entry(str(tree.root), str(path), mlp(), ())
    assert sorted(name for name in os.listdir(path) if name.startswith(".")) == [
        f"{layouts.WAITER_PREFIX}2-b"
    ]


def test_the_table_shows_foreign_locks_of_either_name(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tree.entry(graph="1"), tree.entry(graph="2")
    (old / "model.hlo.pb.lock").touch()
    os.utime(old / "model.hlo.pb.lock", (1, 1))
    (new / layouts.LOCK).touch()
    assert main(["locks"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in shown[:3]] == ["STATE", "unknown, old", "unknown"]
    assert "2 locks in" in shown[3]
    assert "1 of them stale" in shown[3]
    assert main(["locks", "-q"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(old / "model.hlo.pb.lock"), str(new / layouts.LOCK)]
    assert main(["prune", "--locks", "4h", "--dry-run"]) == 0
    assert (old / "model.hlo.pb.lock").exists()
    assert main(["prune", "--locks", "4h"]) == 2
    assert main(["prune", "--locks", "4h", "-y"]) == 0
    assert [(old / "model.hlo.pb.lock").exists(), (new / layouts.LOCK).exists()] == [False, True]


@given(st.sampled_from(Liveness), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_living_owner_is_never_stale(lives: Liveness, age_s: float, limit_s: float) -> None:
    held = HeldLock(LockState("/l", None, age_s, lives), ())
    stale = held.lock.is_stale(limit_s)
    assert stale == (lives is Liveness.DEAD or (lives is Liveness.UNKNOWN and age_s > limit_s))


def test_no_lock_appears_in_an_entry_that_is_being_taken_away(tree: Tree) -> None:
    import fcntl
    import threading

    from neurontools.cache.locks import try_lock

    path = tree.entry()
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    outcome: list[object] = []

    def lock() -> None:
        try:
            outcome.append(try_lock(str(tree.root), str(path)))
        except FileNotFoundError as error:
            outcome.append(error)

    thread = threading.Thread(target=lock)
    thread.start()
    aside = tree.root / layouts.TRASH
    path.rename(aside)
    os.close(descriptor)
    thread.join(timeout=30)
    assert [type(result) for result in outcome] == [FileNotFoundError]
    assert examine_lock(str(aside / layouts.LOCK)) is None
