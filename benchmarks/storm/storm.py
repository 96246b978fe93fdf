"""A storm: a population of clients, a daemon that is killed, a clock that jumps, a disk that is full; and quiet points."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import select
import signal
import struct
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.storm import checks
from benchmarks.storm.board import Board, Slot, Word
from benchmarks.storm.client import StormClient, WrongError
from benchmarks.storm.nuisance import annoy
from neurontools import paths
from neurontools.machine import launch
from neurontools.machine.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = "storm"
KILL_EVERY_S = 1.5
JUMP_EVERY_S = 0.4
YEARS_S = 3600 * 24 * 365
PR_SET_CHILD_SUBREAPER = 36
BIRTHS_AT_ONCE = 120
NUISANCES = 4


@dataclass(frozen=True, slots=True)
class Options:
    """How it storms.

    `users` are the uids that clients take turns to be; empty: all are this user. `clock` is the file from which the
    preloaded clock takes its offset, "" without one. `full_disk` says whether the runtime directory is a small file
    system of its own that may be filled.
    """

    seconds: float
    clients: int
    seed: int
    instance: str
    users: tuple[int, ...]
    group: int
    clock: str
    full_disk: bool


@dataclass(slots=True)
class Outcome:
    """What happened. `wrong` is empty after a good storm."""

    lives: int = 0
    daemons_killed: int = 0
    quiet_points: int = 0
    registrations: int = 0
    executions: int = 0
    clock_jumps: int = 0
    most_alive: int = 0
    full_disk_s: float = 0.0
    private_pages: int = 0
    descriptors: tuple[int, int] = (0, 0)
    resident_mib: tuple[float, float] = (0.0, 0.0)
    resident_at_most_mib: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Storm:
    """Runs a storm; this process becomes the parent of everything that it leaves behind."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._outcome = Outcome()
        self._board = Board(options.clients)
        self._slot_of: dict[int, Slot] = {}
        self._free = list(self._board.slots)
        self._others: set[int] = set()
        self._lifetime: dict[str, int] = {}
        self._kills = False
        self._next_kill_s = self._next_jump_s = 0.0
        self._complaints, self._complain_fd = os.pipe()
        os.set_blocking(self._complaints, False)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        random.seed(options.seed)

    def run(self) -> Outcome:
        """Let it storm and return what happened."""
        info = launch.start(launch.StartOptions(MACHINE, self._options.instance, lnc=1))
        self._core_count = info.core_count
        self._client = Client(MACHINE)
        outcome, seconds = self._outcome, self._options.seconds
        try:
            first = self._measure()
            self._bear_all()
            self._kills = True
            for _ in range(3):
                self._blow(0.2 * seconds)
                self._be_quiet()
            self._kills = False
            self._blow(0.25 * seconds)
            self._be_quiet()
            if self._options.full_disk:
                self._fill_the_disk(0.15 * seconds)
                self._be_quiet()
            self._end_clients()
            self._be_quiet()
            wrong = checks.settled(lambda: self._more_descriptors(first[0]))
            last = self._measure()
        finally:
            self._end_clients()
            self._end_daemon()
        outcome.descriptors = len(first[0]), len(last[0])
        outcome.resident_mib = first[1], last[1]
        outcome.registrations = self._board.total(Word.REGISTERED_OFTEN)
        outcome.executions = self._board.total(Word.EXECUTIONS_DONE)
        outcome.wrong += wrong
        return outcome

    def _blow(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._bear()
            self._reap()
            self._harm()
            time.sleep(0.005)

    def _bear_all(self) -> None:
        # At rest until the last one is there.
        self._board.paused = True
        while self._free:
            self._bear()
        self._board.paused = False

    def _bear(self) -> None:
        for _ in range(min(BIRTHS_AT_ONCE, len(self._free))):
            slot = self._free.pop()
            slot.forget()
            self._slot_of[self._fork(lambda slot=slot: self._live(slot))] = slot
            self._outcome.lives += 1
        self._outcome.most_alive = max(self._outcome.most_alive, len(self._slot_of))
        while len(self._others) < NUISANCES:
            self._others.add(self._fork(lambda: annoy(2.0)))

    def _fork(self, body: Callable[[], None]) -> int:
        seed = random.getrandbits(64)
        pid = os.fork()
        if pid:
            return pid
        try:
            random.seed(seed)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            body()
        except KeyboardInterrupt:
            os._exit(130)
        except WrongError as error:
            self._complain(str(error))
        except BaseException:
            self._complain(traceback.format_exc())
        finally:
            os._exit(0)

    def _live(self, slot: Slot) -> None:
        self._become(slot.index)
        rest_s = min(1.5, self._options.clients / 500)
        client = StormClient(self._board, slot, self._core_count, rest_s, self._complain)
        client.live(random.randint(1, 12))

    def _become(self, index: int) -> None:
        users = self._options.users
        uid = users[index % len(users)] if users else os.getuid()
        if uid != os.getuid():
            os.setgroups([self._options.group])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._others.discard(pid)
            slot = self._slot_of.pop(pid, None)
            if slot is not None:
                slot[Word.DEATHS] += 1
                self._free.append(slot)

    def _harm(self) -> None:
        now = time.monotonic()
        self._outcome.wrong += self._heard()
        if self._slot_of and random.random() < 0.2:
            self._kill_a_client()
        if self._options.clock and now > self._next_jump_s:
            self._next_jump_s = now + random.uniform(0.0, JUMP_EVERY_S)
            self._jump()
        if self._kills and now > self._next_kill_s:
            self._next_kill_s = now + random.uniform(0.2, 2 * KILL_EVERY_S)
            self._kill_the_daemon()

    def _kill_a_client(self) -> None:
        os.kill(random.choice(tuple(self._slot_of)), signal.SIGKILL)

    def _kill_the_daemon(self) -> None:
        for info in launch.list_machines():
            os.kill(info.pid, signal.SIGKILL)
            self._outcome.daemons_killed += 1

    def _jump(self) -> None:
        with open(self._options.clock, "r+b", buffering=0) as file:
            file.write(struct.pack("<q", random.choice((0, -5, 3600, random.randrange(-YEARS_S, YEARS_S)))))
        self._outcome.clock_jumps += 1

    def _fill_the_disk(self, seconds: float) -> None:
        begin, filler = time.monotonic(), f"{os.path.dirname(paths.runtime_dir())}/filler"
        log = launch.find(MACHINE).log
        while time.monotonic() < begin + seconds:
            _fill(filler)  # again and again: who dies makes room
            self._blow(0.1)
        os.unlink(filler)
        self._outcome.full_disk_s = time.monotonic() - begin
        with open(log, encoding="utf-8", errors="replace") as file:
            self._outcome.private_pages = sum("private page" in line for line in file)

    def _be_quiet(self) -> None:
        self._board.paused = True
        wrong = checks.settled(self._not_at_rest)
        wrong = wrong or checks.settled(
            lambda: checks.machine_is_right(self._client, self._board, self._lifetime)
        )
        filled = bool(self._outcome.full_disk_s)
        wrong += checks.settled(
            lambda: checks.files_are_right(self._board, MACHINE, self._daemon_pid(), private_pages=filled)
        )
        wrong += checks.failures_of(launch.find(MACHINE).log)
        self._outcome.resident_at_most_mib = max(
            self._outcome.resident_at_most_mib, checks.resident_bytes(self._daemon_pid()) / 2**20
        )
        self._outcome.wrong += [f"quiet point {self._outcome.quiet_points}: {line}" for line in wrong]
        self._outcome.quiet_points += 1
        self._board.paused = False

    def _not_at_rest(self) -> list[str]:
        self._reap()
        launch.ensure_running(MACHINE)  # those who may not start it wait for it
        restless = [slot[Word.PID] for slot in self._slot_of.values() if not slot[Word.AT_REST]]
        return [f"{len(restless)} clients do not come to rest, such as {restless[:3]}"] if restless else []

    def _daemon_pid(self) -> int:
        pid: int = self._client.call("describe")["pid"]
        return pid

    def _measure(self) -> tuple[list[str], float]:
        pid = self._daemon_pid()
        return checks.descriptors(pid), checks.resident_bytes(pid) / 2**20

    def _more_descriptors(self, at_first: list[str]) -> list[str]:
        found = self._measure()[0]
        more = len(found) > len(at_first)
        return [f"the daemon has the descriptors {found}, at first {at_first}"] if more else []

    def _end_clients(self) -> None:
        # Children of clients become ours when they die: until nobody is left but the daemon.
        give_up = time.monotonic() + checks.SETTLED_WITHIN_S
        while (left := self._children()) and time.monotonic() < give_up:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.02)
        self._outcome.wrong += [f"process {pid} can't be ended" for pid in left] + self._heard()

    def _children(self) -> list[int]:
        me = os.getpid()
        with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as file:
            daemons = {info.pid for info in launch.list_machines()}
            return [int(pid) for pid in file.read().split() if int(pid) not in daemons]

    def _end_daemon(self) -> None:
        self._client.close()
        launch.stop(MACHINE, force=True)
        time.sleep(0.1)
        self._reap()
        self._outcome.wrong += [f"process {pid} is left over" for pid in self._children()]

    def _complain(self, text: str) -> None:
        os.write(self._complain_fd, text.encode()[:4000] + b"\0")

    def _heard(self) -> list[str]:
        if not select.select([self._complaints], [], [], 0)[0]:
            return []
        return [
            text for text in os.read(self._complaints, 1 << 16).decode(errors="replace").split("\0") if text
        ]


def _fill(path: str) -> None:
    # Closed before clients are forked: one that had it open would keep the disk full.
    with open(path, "ab", buffering=0) as file:
        try:
            while file.write(bytes(1 << 12)):
                pass
        except OSError:
            pass
