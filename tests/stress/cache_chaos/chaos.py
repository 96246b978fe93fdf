"""A chaos test of one compile cache: processes start, work and are killed, the disk fills up; then it is checked."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.store import CompileCache
from neurontools.cache.verify import repair, verify_entries, verify_orphans
from neurontools.cache.walk import walk
from neurontools.errors import NeuronToolsError
from tests.compiler.graphs import mlp
from tests.stress.cache_chaos import workers

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.cache.verify import VerifyProblem

ROLE_CYCLE = ("program",) * 6 + (
    "other_user",
    "reader",
    "reader",
    "lister",
    "pruner",
    "pruner",
    "repairer",
    "pinner",
    "copier",
    "copier",
)
KILL_EVERY_S = 0.08
FULL_EVERY_S = 5.0
FULL_FOR_S = 1.5
SILENT_S = 45.0


@dataclass(frozen=True, slots=True)
class CacheChaosOptions:
    """Settings of the test. `full_disk` says whether the folder is a small file system of its own that may be filled."""

    seconds: float
    processes: int
    seed: int
    full_disk: bool


@dataclass(slots=True)
class CacheChaosOutcome:
    """What happened. `wrong` is empty after a good run."""

    processes: int = 0
    kills: int = 0
    rounds: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    full_disk_s: float = 0.0
    entries_left: int = 0
    checks_at_rest: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Worker:
    role: str
    pid: int
    report_fd: int
    last_report_s: float


class CacheChaosTest:
    """One run in a folder of its own."""

    def __init__(self, folder: Path, options: CacheChaosOptions) -> None:
        self._root = f"{folder}/cache"
        self._filler = folder / "filler"
        self._options = options
        self._rng = random.Random(options.seed)
        self._workers: list[_Worker] = []
        self._rounds: Counter[str] = Counter()
        self.outcome = CacheChaosOutcome()

    def run(self) -> CacheChaosOutcome:
        """Run the workers until the end, then the checks; return what happened."""
        layouts.make_root(self._root)
        for number in range(self._options.processes):
            self._start_worker(ROLE_CYCLE[number % len(ROLE_CYCLE)])
        try:
            self._run_workers()
        finally:
            self._kill_all()
        self._check_at_rest()
        self.outcome.rounds = dict(sorted(self._rounds.items()))
        return self.outcome

    def _run_workers(self) -> None:
        end = time.monotonic() + self._options.seconds
        next_kill = time.monotonic() + KILL_EVERY_S
        next_full = time.monotonic() + FULL_EVERY_S
        while time.monotonic() < end:
            self._read_reports(max(0.0, next_kill - time.monotonic()))
            now = time.monotonic()
            if now >= next_kill:
                next_kill = now + self._rng.uniform(0, 2 * KILL_EVERY_S)
                self._kill_random_worker()
            if self._options.full_disk and now >= next_full:
                next_full = self._fill_or_empty(now)
        self._empty()

    def _start_worker(self, role: str) -> None:
        report_fd, write_fd = os.pipe()
        seed = self._rng.randrange(1 << 30)
        pid = os.fork()
        if not pid:
            os.close(report_fd)
            try:
                workers.run(role, self._root, seed, lambda text: _write_report(write_fd, text))
            finally:
                os._exit(1)
        os.close(write_fd)
        os.set_blocking(report_fd, False)
        self._workers.append(_Worker(role, pid, report_fd, time.monotonic()))
        self.outcome.processes += 1

    def _read_reports(self, wait_s: float) -> None:
        poll = select.poll()
        by_descriptor = {worker.report_fd: worker for worker in self._workers}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(wait_s * 1000):
            self._read_worker(by_descriptor[descriptor])
        for worker in self._workers:
            if time.monotonic() - worker.last_report_s > SILENT_S:
                self.outcome.wrong.append(f"{worker.role} {worker.pid} did nothing for {SILENT_S:g} s")
                worker.last_report_s = time.monotonic()

    def _read_worker(self, worker: _Worker) -> None:
        try:
            text = os.read(worker.report_fd, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            return
        worker.last_report_s = time.monotonic()
        for line in text.splitlines():
            if line.startswith("wrong: "):
                self.outcome.wrong.append(line)
            elif line == "refused":
                self.outcome.refused += 1
            else:
                self._rounds[worker.role] += 1

    def _kill_random_worker(self) -> None:
        worker = self._rng.choice(self._workers)
        self._kill_worker(worker)
        self.outcome.kills += 1
        self._start_worker(worker.role)

    def _kill_worker(self, worker: _Worker) -> None:
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
        self._read_worker(worker)
        os.close(worker.report_fd)
        self._workers.remove(worker)

    def _kill_all(self) -> None:
        for worker in tuple(self._workers):
            self._kill_worker(worker)

    def _fill_or_empty(self, now: float) -> float:
        if self._filler.exists():
            self._empty()
            return now + FULL_EVERY_S
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 16))
        self.outcome.full_disk_s += FULL_FOR_S
        return now + FULL_FOR_S

    def _empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def _check_at_rest(self) -> None:
        """All workers are dead: nothing waits for them, and what a repair leaves is whole and usable."""
        self._check_lookups()
        repair(self._root, self._findings())
        findings = self._findings()
        self._expect(not findings, f"findings after a repair: {findings[:3]}")
        found = scan(self._root)
        self.outcome.entries_left = len(found.entries)
        self._expect(found.skipped == 0, f"{found.skipped} names of no layout")
        states = Counter(entry.state for entry in found.entries)
        self._expect(states[State.DONE] == workers.GRAPHS, f"not all is compiled: {dict(states)}")

    def _findings(self) -> tuple[VerifyProblem, ...]:
        return (*verify_entries(self._root, walk(self._root).places)[1], *verify_orphans(self._root))

    def _check_lookups(self) -> None:
        cache = CompileCache.open({"NEURONTOOLS_CACHE_LOCK_TIMEOUT": "5s"}, self._root)
        for rows in range(1, workers.GRAPHS + 1):
            for hit in (None, True):
                try:
                    result = cache.get_or_compile(mlp(rows=rows), workers.TRN1, "net")
                except NeuronToolsError as error:
                    self._expect(False, f"graph {rows}: {error.message}")
                    continue
                right = result.neff.graph == mlp(rows=rows) and result.entry != ""
                self._expect(right and (hit is None or result.hit), f"graph {rows}: not cached at rest")
        cache.close()

    def _expect(self, holds: bool, words: str) -> None:
        self.outcome.checks_at_rest += 1
        if not holds:
            self.outcome.wrong.append(f"at rest: {words}")


def _write_report(descriptor: int, text: str) -> None:
    os.write(descriptor, text.replace("\n", " / ").encode() + b"\n")
