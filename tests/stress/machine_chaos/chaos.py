"""A chaos test of a machine: many clients, a daemon that is killed, a clock that jumps, a full disk; and checkpoints."""

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

from neurontools import paths
from neurontools.machine import launch
from neurontools.machine.client import Client
from tests.stress.machine_chaos import checks
from tests.stress.machine_chaos.bad_clients import misbehave
from tests.stress.machine_chaos.client import ChaosClient, WrongError
from tests.stress.machine_chaos.shared_state import ClientSlot, SharedState, Word

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = "chaos"
KILL_EVERY_S = 1.5
JUMP_EVERY_S = 0.4
YEARS_S = 3600 * 24 * 365
PR_SET_CHILD_SUBREAPER = 36
STARTS_AT_ONCE = 120
BAD_CLIENTS = 4


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """Settings of the test.

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
class ChaosOutcome:
    """What happened. `wrong` is empty after a good run."""

    processes: int = 0
    daemons_killed: int = 0
    checkpoints: int = 0
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


class ChaosTest:
    """One run; this process becomes the parent of everything that it leaves behind."""

    def __init__(self, options: ChaosOptions) -> None:
        self._options = options
        self._outcome = ChaosOutcome()
        self._shared_state = SharedState(options.clients)
        self._slot_of: dict[int, ClientSlot] = {}
        self._free = list(self._shared_state.slots)
        self._bad_clients: set[int] = set()
        self._lifetime: dict[str, int] = {}
        self._kills_daemon = False
        self._next_kill_s = self._next_jump_s = 0.0
        self._errors_fd, self._report_fd = os.pipe()
        os.set_blocking(self._errors_fd, False)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        random.seed(options.seed)

    def run(self) -> ChaosOutcome:
        """Run the test and return what happened."""
        info = launch.start(launch.StartOptions(MACHINE, self._options.instance, lnc=1))
        self._core_count = info.core_count
        self._client = Client(MACHINE)
        outcome, seconds = self._outcome, self._options.seconds
        try:
            first = self._measure_daemon()
            self._start_all()
            self._kills_daemon = True
            for _ in range(3):
                self._run_clients(0.2 * seconds)
                self._check_at_rest()
            self._kills_daemon = False
            self._run_clients(0.25 * seconds)
            self._check_at_rest()
            if self._options.full_disk:
                self._fill_disk_for(0.15 * seconds)
                self._check_at_rest()
            self._end_clients()
            self._check_at_rest()
            wrong = checks.wait_until_settled(lambda: self._leaked_descriptors(first[0]))
            last = self._measure_daemon()
        finally:
            self._end_clients()
            self._end_daemon()
        outcome.descriptors = len(first[0]), len(last[0])
        outcome.resident_mib = first[1], last[1]
        outcome.registrations = self._shared_state.total(Word.REGISTRATIONS)
        outcome.executions = self._shared_state.total(Word.EXECUTIONS_DONE)
        outcome.wrong += wrong
        return outcome

    def _run_clients(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._start_clients()
            self._reap()
            self._disturb()
            time.sleep(0.005)

    def _start_all(self) -> None:
        # At rest until the last one is there.
        self._shared_state.paused = True
        while self._free:
            self._start_clients()
        self._shared_state.paused = False

    def _start_clients(self) -> None:
        for _ in range(min(STARTS_AT_ONCE, len(self._free))):
            slot = self._free.pop()
            slot.forget()
            self._slot_of[self._fork(lambda slot=slot: self._run_client(slot))] = slot
            self._outcome.processes += 1
        self._outcome.most_alive = max(self._outcome.most_alive, len(self._slot_of))
        while len(self._bad_clients) < BAD_CLIENTS:
            self._bad_clients.add(self._fork(lambda: misbehave(2.0)))

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
            self._report_error(str(error))
        except BaseException:
            self._report_error(traceback.format_exc())
        finally:
            os._exit(0)

    def _run_client(self, slot: ClientSlot) -> None:
        self._switch_user(slot.index)
        rest_s = min(1.5, self._options.clients / 500)
        client = ChaosClient(self._shared_state, slot, self._core_count, rest_s, self._report_error)
        client.run(random.randint(1, 12))

    def _switch_user(self, index: int) -> None:
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
            self._bad_clients.discard(pid)
            slot = self._slot_of.pop(pid, None)
            if slot is not None:
                slot[Word.DEATHS] += 1
                self._free.append(slot)

    def _disturb(self) -> None:
        now = time.monotonic()
        self._outcome.wrong += self._reported_errors()
        if self._slot_of and random.random() < 0.2:
            self._kill_client()
        if self._options.clock and now > self._next_jump_s:
            self._next_jump_s = now + random.uniform(0.0, JUMP_EVERY_S)
            self._jump_clock()
        if self._kills_daemon and now > self._next_kill_s:
            self._next_kill_s = now + random.uniform(0.2, 2 * KILL_EVERY_S)
            self._kill_daemon()

    def _kill_client(self) -> None:
        os.kill(random.choice(tuple(self._slot_of)), signal.SIGKILL)

    def _kill_daemon(self) -> None:
        for info in launch.list_machines():
            os.kill(info.pid, signal.SIGKILL)
            self._outcome.daemons_killed += 1

    def _jump_clock(self) -> None:
        with open(self._options.clock, "r+b", buffering=0) as file:
            file.write(struct.pack("<q", random.choice((0, -5, 3600, random.randrange(-YEARS_S, YEARS_S)))))
        self._outcome.clock_jumps += 1

    def _fill_disk_for(self, seconds: float) -> None:
        begin, filler = time.monotonic(), f"{os.path.dirname(paths.runtime_dir())}/filler"
        log = launch.find(MACHINE).log
        while time.monotonic() < begin + seconds:
            _fill(filler)  # again and again: a client that dies makes room
            self._run_clients(0.1)
        os.unlink(filler)
        self._outcome.full_disk_s = time.monotonic() - begin
        with open(log, encoding="utf-8", errors="replace") as file:
            self._outcome.private_pages = sum("private page" in line for line in file)

    def _check_at_rest(self) -> None:
        self._shared_state.paused = True
        wrong = checks.wait_until_settled(self._restless_clients)
        wrong = wrong or checks.wait_until_settled(
            lambda: checks.check_machine(self._client, self._shared_state, self._lifetime)
        )
        filled = bool(self._outcome.full_disk_s)
        wrong += checks.wait_until_settled(
            lambda: checks.check_files(self._shared_state, MACHINE, self._daemon_pid(), private_pages=filled)
        )
        wrong += checks.find_tracebacks(launch.find(MACHINE).log)
        self._outcome.resident_at_most_mib = max(
            self._outcome.resident_at_most_mib, checks.resident_bytes(self._daemon_pid()) / 2**20
        )
        self._outcome.wrong += [f"checkpoint {self._outcome.checkpoints}: {line}" for line in wrong]
        self._outcome.checkpoints += 1
        self._shared_state.paused = False

    def _restless_clients(self) -> list[str]:
        self._reap()
        launch.ensure_running(MACHINE)  # those who may not start it wait for it
        restless = [slot[Word.PID] for slot in self._slot_of.values() if not slot[Word.AT_REST]]
        return [f"{len(restless)} clients do not come to rest, such as {restless[:3]}"] if restless else []

    def _daemon_pid(self) -> int:
        pid: int = self._client.call("describe")["pid"]
        return pid

    def _measure_daemon(self) -> tuple[list[str], float]:
        pid = self._daemon_pid()
        return checks.descriptors(pid), checks.resident_bytes(pid) / 2**20

    def _leaked_descriptors(self, at_first: list[str]) -> list[str]:
        found = self._measure_daemon()[0]
        more = len(found) > len(at_first)
        return [f"the daemon has the descriptors {found}, at first {at_first}"] if more else []

    def _end_clients(self) -> None:
        # Children of clients become ours when they die: repeat until only the daemon is left.
        give_up = time.monotonic() + checks.SETTLED_WITHIN_S
        while (left := self._children()) and time.monotonic() < give_up:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.02)
        self._outcome.wrong += [f"process {pid} can't be ended" for pid in left] + self._reported_errors()

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

    def _report_error(self, text: str) -> None:
        os.write(self._report_fd, text.encode()[:4000] + b"\0")

    def _reported_errors(self) -> list[str]:
        if not select.select([self._errors_fd], [], [], 0)[0]:
            return []
        return [
            text for text in os.read(self._errors_fd, 1 << 16).decode(errors="replace").split("\0") if text
        ]


def _fill(path: str) -> None:
    # Closed before clients are forked: a client that had it open would keep the disk full.
    with open(path, "ab", buffering=0) as file:
        try:
            while file.write(bytes(1 << 12)):
                pass
        except OSError:
            pass
