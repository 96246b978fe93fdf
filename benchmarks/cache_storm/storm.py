"""A storm on one compile cache: processes that are born, work and are killed; a disk that fills up; and what must hold."""

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

from benchmarks.cache_storm import actors
from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.store import CompileCache
from neurontools.cache.verify import repair, verify_entries, verify_orphans
from neurontools.cache.walk import walk
from neurontools.errors import NeuronToolsError
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.cache.verify import VerifyProblem

CAST = ("program",) * 6 + (
    "stranger",
    "reader",
    "reader",
    "looker",
    "pruner",
    "pruner",
    "fixer",
    "pinner",
    "copier",
    "copier",
)
KILL_EVERY_S = 0.08
FULL_EVERY_S = 5.0
FULL_FOR_S = 1.5
SILENT_S = 45.0


@dataclass(frozen=True, slots=True)
class Options:
    """How it storms. `full_disk` says whether the folder is a small file system of its own that may be filled."""

    seconds: float
    processes: int
    seed: int
    full_disk: bool


@dataclass(slots=True)
class Outcome:
    """What happened. `wrong` is empty after a good storm."""

    lives: int = 0
    kills: int = 0
    rounds: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    full_disk_s: float = 0.0
    entries_left: int = 0
    quiet_checks: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Life:
    role: str
    pid: int
    hears: int
    heard_s: float


class Storm:
    """One storm in a folder of its own."""

    def __init__(self, folder: Path, options: Options) -> None:
        self._root = f"{folder}/cache"
        self._filler = folder / "filler"
        self._options = options
        self._chance = random.Random(options.seed)
        self._lives: list[_Life] = []
        self._rounds: Counter[str] = Counter()
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Storm, come to rest, check, and return what happened."""
        layouts.make_root(self._root)
        for number in range(self._options.processes):
            self._born(CAST[number % len(CAST)])
        try:
            self._rage()
        finally:
            self._end_all()
        self._check_at_rest()
        self.outcome.rounds = dict(sorted(self._rounds.items()))
        return self.outcome

    def _rage(self) -> None:
        end = time.monotonic() + self._options.seconds
        next_kill = time.monotonic() + KILL_EVERY_S
        next_full = time.monotonic() + FULL_EVERY_S
        while time.monotonic() < end:
            self._hear(max(0.0, next_kill - time.monotonic()))
            now = time.monotonic()
            if now >= next_kill:
                next_kill = now + self._chance.uniform(0, 2 * KILL_EVERY_S)
                self._kill_one()
            if self._options.full_disk and now >= next_full:
                next_full = self._fill_or_empty(now)
        self._empty()

    def _born(self, role: str) -> None:
        hears, tells = os.pipe()
        seed = self._chance.randrange(1 << 30)
        pid = os.fork()
        if not pid:
            os.close(hears)
            try:
                actors.live(role, self._root, seed, lambda text: _tell(tells, text))
            finally:
                os._exit(1)
        os.close(tells)
        os.set_blocking(hears, False)
        self._lives.append(_Life(role, pid, hears, time.monotonic()))
        self.outcome.lives += 1

    def _hear(self, wait_s: float) -> None:
        poll = select.poll()
        by_descriptor = {life.hears: life for life in self._lives}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(wait_s * 1000):
            self._listen(by_descriptor[descriptor])
        for life in self._lives:
            if time.monotonic() - life.heard_s > SILENT_S:
                self.outcome.wrong.append(f"{life.role} {life.pid} did nothing for {SILENT_S:g} s")
                life.heard_s = time.monotonic()

    def _listen(self, life: _Life) -> None:
        try:
            text = os.read(life.hears, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            return
        life.heard_s = time.monotonic()
        for line in text.splitlines():
            if line.startswith("wrong: "):
                self.outcome.wrong.append(line)
            elif line == "refused":
                self.outcome.refused += 1
            else:
                self._rounds[life.role] += 1

    def _kill_one(self) -> None:
        life = self._chance.choice(self._lives)
        self._end(life)
        self.outcome.kills += 1
        self._born(life.role)

    def _end(self, life: _Life) -> None:
        os.kill(life.pid, signal.SIGKILL)
        os.waitpid(life.pid, 0)
        self._listen(life)
        os.close(life.hears)
        self._lives.remove(life)

    def _end_all(self) -> None:
        for life in tuple(self._lives):
            self._end(life)

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
        """Everybody is dead: nothing waits for them, and what a repair leaves is whole and usable."""
        self._check_lookups()
        repair(self._root, self._findings())
        findings = self._findings()
        self._expect(not findings, f"findings after a repair: {findings[:3]}")
        found = scan(self._root)
        self.outcome.entries_left = len(found.entries)
        self._expect(found.skipped == 0, f"{found.skipped} names of no layout")
        states = Counter(entry.state for entry in found.entries)
        self._expect(states[State.DONE] == actors.GRAPHS, f"not all is compiled: {dict(states)}")

    def _findings(self) -> tuple[VerifyProblem, ...]:
        return (*verify_entries(self._root, walk(self._root).places)[1], *verify_orphans(self._root))

    def _check_lookups(self) -> None:
        cache = CompileCache.open({"NEURONTOOLS_CACHE_LOCK_TIMEOUT": "5s"}, self._root)
        for rows in range(1, actors.GRAPHS + 1):
            for hit in (None, True):
                try:
                    result = cache.get_or_compile(mlp(rows=rows), actors.TRN1, "net")
                except NeuronToolsError as error:
                    self._expect(False, f"graph {rows}: {error.message}")
                    continue
                right = result.neff.graph == mlp(rows=rows) and result.entry != ""
                self._expect(right and (hit is None or result.hit), f"graph {rows}: not cached at rest")
        cache.close()

    def _expect(self, holds: bool, words: str) -> None:
        self.outcome.quiet_checks += 1
        if not holds:
            self.outcome.wrong.append(f"at rest: {words}")


def _tell(descriptor: int, text: str) -> None:
    os.write(descriptor, text.replace("\n", " / ").encode() + b"\n")
