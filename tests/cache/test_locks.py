"""Locks between real processes: races, death by SIGKILL, foreign locks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import entry_io, layouts, locks, lookup
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.events import Usage
from neurontools.cache.lock_owner import STALE_S, Liveness, new_lock_owner, owner_liveness, parse_lock_owner
from neurontools.cache.locks import LockState, examine_lock, is_in_use, remove_lock_of_process, try_lock
from neurontools.cache.pruning.removal import break_locks
from neurontools.cache.store import CompileCache
from neurontools.machine.instances.catalogue import instance_type
from tests.cache.entries import entry_path
from tests.compiler.graphs import mlp
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.loaded_python import LoadedPython

TRN1 = instance_type("trn1.2xlarge").device
Opener = Callable[..., CompileCache]

_WORKER = """
import sys, time
from neurontools.compiler import compile as compiler
from neurontools.cache.store import CompileCache
from neurontools.compiler.graph import graph_from_bytes
from neurontools.machine.instances.catalogue import instance_type
compile_graph = compiler.compile_graph
def slow(*arguments):
    print("compiling", flush=True)
    time.sleep({compile_s})
    return compile_graph(*arguments)
compiler.compile_graph = slow
cache = CompileCache.open()
print("ready", flush=True)
sys.stdin.readline()
result = cache.get_or_compile(graph_from_bytes({graph!r}), instance_type("trn1.2xlarge").device, "mlp")
print("hit" if result.hit else "miss", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def worker() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that compiles when it gets a line, and ends at the next."""
    started: list[subprocess.Popen[str]] = []

    def start(compile_s: float, python: str = sys.executable) -> subprocess.Popen[str]:
        text = _WORKER.format(graph=mlp().to_bytes(), compile_s=compile_s)
        started.append(
            subprocess.Popen([python, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_sixteen_processes_compile_once(
    worker: Callable[..., subprocess.Popen[str]], loaded_commands: LoadedPython, home: Path
) -> None:
    processes = [worker(0.2, loaded_commands.executable) for _ in range(16)]
    assert [hear(process) for process in processes] == ["ready"] * 16
    for process in processes:
        tell(process)
    answers = []
    for process in processes:
        answer = hear(process)
        answers.append(hear(process) if answer == "compiling" else answer)
    assert sorted(answers) == ["hit"] * 15 + ["miss"]
    totals = Usage(str(home / "compile-cache")).totals()
    assert (totals.hits, totals.misses) == (15, 1)


def test_a_killed_compilers_entry_is_taken_over(
    worker: Callable[..., subprocess.Popen[str]], open_cache: Opener
) -> None:
    process = worker(600)
    assert hear(process) == "ready"
    tell(process)
    assert hear(process) == "compiling"
    cache = open_cache()
    (entry,) = scan(cache.root).entries
    assert entry.state is State.LOCKED
    assert entry.lock is not None
    assert entry.lock.owner is not None
    assert (entry.lock.owner.pid, entry.lock.liveness) == (process.pid, Liveness.ALIVE)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (entry,) = scan(cache.root).entries
    assert entry.state is State.INTERRUPTED
    result = cache.get_or_compile(mlp(), TRN1, "mlp")
    assert (result.hit, result.entry) == (False, entry.path)
    (entry,) = scan(cache.root).entries
    assert (entry.state, entry.lock) == (State.DONE, None)


def test_waiters_of_a_killed_compiler_go_on_with_one_compile(
    worker: Callable[..., subprocess.Popen[str]], home: Path
) -> None:
    first = worker(600)
    assert hear(first) == "ready"
    tell(first)
    assert hear(first) == "compiling"
    waiters = [worker(0.1) for _ in range(3)]
    for process in waiters:
        assert hear(process) == "ready"
        tell(process)
    first.kill()
    first.wait()
    answers = []
    for process in waiters:
        answer = hear(process)
        answers.append(hear(process) if answer == "compiling" else answer)
    assert sorted(answers) == ["hit", "hit", "miss"]
    assert Usage(str(home / "compile-cache")).totals().misses == 2


def foreign_lock(cache: CompileCache) -> Path:
    entry = Path(entry_path(cache, mlp()))
    entry.mkdir(parents=True)
    (entry / layouts.LOCK).touch()
    return entry / layouts.LOCK


def test_a_foreign_lock_is_waited_for_and_reported(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "neurontools.cache")
    monkeypatch.setattr(lookup, "_NOTICE_S", 0.05)
    cache = open_cache()
    lock = foreign_lock(cache)
    told = threading.Event()

    def release() -> None:
        wait_until(lambda: "been waiting for" in caplog.text)
        told.set()
        lock.unlink()

    holder = threading.Thread(target=release)
    holder.start()
    result = cache.get_or_compile(mlp(), TRN1, "mlp")
    holder.join()
    assert told.is_set()
    assert (result.hit, result.entry) == (False, str(lock.parent))
    assert (
        f"Another process must be compiling {lock.parent}/{layouts.GRAPH}, been waiting for: 0.0 minutes"
        in caplog.text
    )


class Minutes:
    """A clock on which each sleep takes a minute; after some, something happens."""

    def __init__(self, number: int, happens: Callable[[], None]) -> None:
        self._left, self._happens = number, happens
        self._now_s = 1000.0

    def sleep(self, _: float) -> None:
        self._now_s += 60
        self._left -= 1
        if self._left == 0:
            self._happens()

    def monotonic(self) -> float:
        return self._now_s

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


def test_a_long_wait_is_reported_each_minute(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "neurontools.cache")
    cache = open_cache()
    lock = foreign_lock(cache)
    monkeypatch.setattr(lookup, "time", Minutes(5, lock.unlink))
    cache.get_or_compile(mlp(), TRN1, "mlp")
    waits = [text.rpartition(": ")[2] for text in caplog.messages if "been waiting for" in text]
    assert waits == ["1.0 minutes", "2.0 minutes", "3.0 minutes", "4.0 minutes"]


def test_an_old_foreign_lock_is_still_respected(open_cache: Opener) -> None:
    cache = open_cache()
    lock = foreign_lock(cache)
    os.utime(lock, (1, 1))
    layouts.make_root(cache.root)
    assert try_lock(cache.root, str(lock.parent)) is None


def test_two_threads_compile_once(open_cache: Opener) -> None:
    caches = [open_cache() for _ in range(6)]
    results = []
    threads = [
        threading.Thread(
            target=lambda cache=cache: results.append(cache.get_or_compile(mlp(), TRN1, "mlp").hit)
        )
        for cache in caches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] + [True] * 5


def test_an_owner_is_alive_while_its_process_is() -> None:
    owner = new_lock_owner()
    assert owner_liveness(owner, 10**9) is Liveness.ALIVE
    assert owner_liveness(replace(owner, start_ticks=owner.start_ticks + 1), 0) is Liveness.DEAD
    assert owner_liveness(replace(owner, pid=2**22 + 5), 0) is Liveness.DEAD
    assert owner_liveness(None, 10**9) is Liveness.UNKNOWN


@pytest.mark.parametrize("foreign", [{"boot_id": "another"}, {"pid_namespace": "pid:[1]"}])
def test_elsewhere_only_the_heartbeat_decides(foreign: dict[str, str]) -> None:
    owner = replace(new_lock_owner(), pid=2**22 + 5, **foreign)  # type: ignore[arg-type]
    assert owner_liveness(owner, STALE_S - 1) is Liveness.ALIVE
    assert owner_liveness(owner, STALE_S + 1) is Liveness.DEAD


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    ticks = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    owner = replace(new_lock_owner(), pid=child.pid, start_ticks=ticks)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner_liveness(owner, 0) is Liveness.DEAD
    child.wait()


def test_an_owner_survives_its_file() -> None:
    owner = new_lock_owner()
    assert parse_lock_owner(owner.to_bytes()) == owner


@pytest.mark.parametrize("content", [b"", b"1234", b"{}", b"[]", b"\xff", b'{"pid": 1e999}', b"[" * 9999])
def test_a_lock_without_an_owner_is_foreign(content: bytes) -> None:
    assert parse_lock_owner(content) is None


def test_a_lock_tells_its_owner_at_every_moment(open_cache: Opener) -> None:
    cache = open_cache()
    entry = entry_path(cache, mlp())
    layouts.make_root(cache.root)
    os.makedirs(entry)
    lock = try_lock(cache.root, entry)
    assert lock is not None
    stored = json.loads(Path(entry, layouts.LOCK).read_text())
    assert stored["pid"] == os.getpid()
    assert try_lock(cache.root, entry) is None
    lock.release()
    assert os.listdir(entry) == []


def test_a_lock_that_was_taken_over_is_not_removed_by_its_first_owner(open_cache: Opener) -> None:
    cache = open_cache()
    entry = entry_path(cache, mlp())
    layouts.make_root(cache.root)
    os.makedirs(entry)
    first = try_lock(cache.root, entry)
    assert first is not None
    path = Path(entry, layouts.LOCK)
    path.write_bytes(new_lock_owner().to_bytes())
    first.release()
    assert path.exists()


@pytest.mark.parametrize(("start_ticks", "removed"), [(None, True), (1, False)])
def test_a_process_removes_its_own_lock_alone(
    open_cache: Opener, start_ticks: int | None, removed: bool
) -> None:
    cache = open_cache()
    entry = entry_path(cache, mlp())
    os.makedirs(entry)
    path = Path(entry, layouts.LOCK)
    owner = new_lock_owner()
    path.write_bytes((owner if start_ticks is None else replace(owner, start_ticks=start_ticks)).to_bytes())
    remove_lock_of_process(cache.root, entry)
    assert path.exists() is not removed
    path.write_bytes(b"")
    remove_lock_of_process(cache.root, entry)
    assert path.exists()


@pytest.mark.parametrize("taken_over", [True, False])
def test_a_dead_owners_lock_is_checked_again_under_the_root_lock(
    home: Path, monkeypatch: pytest.MonkeyPatch, taken_over: bool
) -> None:
    """Two waiters see a dead owner's lock; the slower one finds the lock of the faster one when its turn comes."""
    root, entry = home / "c", home / "c" / "v" / "MODULE_1+00000000"
    entry.mkdir(parents=True)
    path = entry / layouts.LOCK
    path.write_bytes(replace(new_lock_owner(), start_ticks=1).to_bytes())
    faster = new_lock_owner().to_bytes()
    root_lock = locks.root_lock

    @contextmanager
    def after_the_faster_one(held_root: str) -> Iterator[None]:
        if taken_over:
            path.write_bytes(faster)
        with root_lock(held_root):
            yield

    monkeypatch.setattr(locks, "root_lock", after_the_faster_one)
    lock = try_lock(str(root), str(entry))
    monkeypatch.undo()
    if lock is not None:
        lock.release()
    assert (lock is None, path.exists()) == (taken_over, taken_over)
    assert not taken_over or path.read_bytes() == faster


def test_a_stale_lock_that_a_compile_took_over_is_not_broken(home: Path) -> None:
    entry = home / "c" / "v" / "MODULE_1+00000000"
    entry.mkdir(parents=True)
    path = entry / layouts.LOCK
    path.write_bytes(replace(new_lock_owner(), start_ticks=1).to_bytes())
    stale = LockState(str(path), None, 0.0, Liveness.DEAD)
    assert break_locks(str(home / "c"), (stale,), 0.0) == (stale,)
    path.write_bytes(new_lock_owner().to_bytes())
    assert break_locks(str(home / "c"), (stale,), 0.0) == ()
    assert path.exists()


def test_a_heart_beats(open_cache: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    from neurontools.cache import locks

    monkeypatch.setattr(locks, "HEARTBEAT_S", 0.01)
    cache = open_cache()
    entry = entry_path(cache, mlp())
    layouts.make_root(cache.root)
    os.makedirs(entry)
    lock = try_lock(cache.root, entry)
    assert lock is not None
    os.utime(f"{entry}/{layouts.LOCK}", (1, 1))
    wait_until(lambda: os.stat(f"{entry}/{layouts.LOCK}").st_mtime != 1)
    state = examine_lock(f"{entry}/{layouts.LOCK}")
    lock.release()
    assert state is not None
    assert state.age_s < 60


def test_a_process_does_not_wait_for_a_lock_of_its_own_that_it_could_not_remove(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    entry = Path(entry_path(cache, mlp()))
    entry.mkdir(parents=True)
    Path(cache.root, layouts.ROOT_LOCK).touch()
    lock = try_lock(cache.root, str(entry))
    assert lock is not None
    assert try_lock(cache.root, str(entry)) is None
    with monkeypatch.context() as patch:
        patch.setattr(locks.Directory, "remove_quietly", lambda *_: None)
        lock.release()
    found = examine_lock(f"{entry}/{layouts.LOCK}")
    assert found is not None
    assert found.liveness is Liveness.ALIVE
    assert not cache.get_or_compile(mlp(), TRN1, "mlp").hit
    assert scan(cache.root).entries[0].state is State.DONE


def test_an_entry_that_a_removal_puts_back_is_held_all_the_same(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, aside = home / "entry", home / "aside"
    aside.mkdir()
    naps = iter([lambda: None, lambda: aside.rename(entry)])
    monkeypatch.setattr(entry_io.time, "sleep", lambda _: next(naps)())
    held = entry_io.hold(str(entry))
    assert held is not None
    assert is_in_use(str(entry))
    entry_io.release(held)
    assert not is_in_use(str(entry))


def test_the_kernel_s_list_of_locks_says_which_entries_are_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("used", "other"):
        (tmp_path / name).mkdir()
    held = frozenset({(tmp_path / "used").stat().st_ino})
    monkeypatch.setattr(locks, "_held_inodes", lambda root: held)
    is_used = locks.in_use_checker(str(tmp_path))
    assert [is_used(str(tmp_path / name)) for name in ("used", "other", "gone")] == [True, False, False]
    assert locks.in_use_checker("s3://bucket/cache") is is_in_use
    monkeypatch.setattr(locks, "_held_inodes", lambda root: None)
    assert locks.in_use_checker(str(tmp_path)) is is_in_use


@pytest.mark.parametrize("shows_own", [True, False])
def test_the_kernel_s_list_of_locks_counts_only_if_it_shows_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shows_own: bool
) -> None:
    status = os.stat(tmp_path)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    shown = tmp_path / "locks"
    numbers = [status.st_ino, 1234567] if shows_own else [1234567]
    shown.write_text("".join(f"1: FLOCK ADVISORY WRITE 7 {device}:{number} 0 EOF\n" for number in numbers))
    real_open, real_readlink = open, os.readlink
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: real_open(shown if path == "/proc/locks" else path, *a, **k)
    )
    namespace = locks._FIRST_NAMESPACE
    monkeypatch.setattr(
        os,
        "readlink",
        lambda path, **k: namespace if path == "/proc/self/ns/pid" else real_readlink(path, **k),
    )
    assert locks._held_inodes(str(tmp_path)) == ({1234567} if shows_own else None)


def test_a_lock_that_cannot_be_read_has_no_age() -> None:
    def refuse() -> int:
        raise PermissionError

    assert locks._examine("/c/lock", refuse) == locks.LockState("/c/lock", None, 0.0, Liveness.UNKNOWN)
