"""Journals of one user for one root: what each lookup did, and what `neuron-cache` removed.

A line of `events` is `time run event seconds module`, a line of `removed` is `time module reason`. Lines are appended
whole, so processes need no lock. A file that has grown is renamed once, and the previous one is dropped.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.cache.location import counters_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neurontools.cache.pruning.rules import PruneDecision


_MAX_BYTES = 8 << 20
_RUN_VARIABLES = (env.CACHE_RUN, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_FIELDS = 5
_MOST_BYTES = 1 << 20
_MAX_REMOVED_BYTES = 4 << 20


class LookupEventKind(StrEnum):
    """What happened: a hit (seconds saved by it), a miss (seconds compiled), waiting (seconds waited), ..."""

    HIT = "hit"
    MISS = "miss"
    WAIT = "wait"
    FAILURE = "failure"
    DAMAGED = "damaged"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class LookupEvent:
    """One event of a run; the kind defines what `seconds` are."""

    unix_s: float
    run: str
    kind: LookupEventKind
    seconds: float
    module: str


def events_path(root: str) -> str:
    """Return the path of this user's events for a root."""
    return f"{counters_dir(root)}/events"


class Events:
    """The events of one root. Writing never fails: an event that cannot be written is dropped."""

    def __init__(self, root: str) -> None:
        self._directory = counters_dir(root)
        self._path = events_path(root)
        self._descriptor: int | None = None
        self._pid = 0

    def add(self, kind: LookupEventKind, module: str, seconds: float = 0.0) -> None:
        """Append one event of this process's run."""
        line = f"{time.time():.3f} {run_name()} {kind} {seconds:.6f} {module}\n"
        try:
            os.write(self._opened(), line.encode("utf-8", "replace"))
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self, since_unix_s: float = 0.0) -> Iterator[LookupEvent]:
        """Yield the recorded events since a time, oldest first; damaged lines are skipped."""
        for path in (f"{self._path}.old", self._path):
            try:
                if os.stat(path).st_mtime < since_unix_s:
                    continue
                with open(path, encoding="utf-8", errors="replace") as lines:
                    for line in lines:
                        event = parse_event(line)
                        if event is not None and event.unix_s >= since_unix_s:
                            yield event
            except OSError:
                continue

    def _opened(self) -> int:
        # A forked child has its own file position already (O_APPEND), but must not close its parent's descriptor twice.
        if self._descriptor is None or self._pid != os.getpid():
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            if os.path.exists(self._path) and os.stat(self._path).st_size > _MAX_BYTES:
                os.replace(self._path, f"{self._path}.old")
            options = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, options, 0o600)
            self._pid = os.getpid()
        return self._descriptor


@cache
def _run_of(pid: int) -> str:
    from neurontools.base.procfs import read_start_ticks

    for variable in _RUN_VARIABLES:
        name = os.environ.get(variable, "")
        if name and name != "none" and name.isprintable() and " " not in name:
            return f"{variable.partition('_')[0].lower()}:{name[:64]}"
    return f"{pid}:{read_start_ticks(pid) or 0}"


def run_name() -> str:
    """Return the name of this process's run: the job name of its launcher, else pid and start time."""
    return _run_of(os.getpid())


def parse_event(line: str) -> LookupEvent | None:
    """Return the event of a line, None if the line is damaged or incomplete."""
    parts = line.split()
    try:
        if len(parts) == _FIELDS and line.endswith("\n"):
            unix_s, seconds = float(parts[0]), float(parts[3])
            if isfinite(unix_s) and isfinite(seconds):
                return LookupEvent(unix_s, parts[1], LookupEventKind(parts[2]), seconds, parts[4])
    except ValueError:
        pass
    return None


class EventTail:
    """New events of this user for one root."""

    def __init__(self, root: str) -> None:
        self._path = events_path(root)
        self._inode, self._offset = _end_of(self._path)

    def new(self) -> Iterator[LookupEvent]:
        """Yield the events since the last call; an incomplete line is read with the next call."""
        inode, size = _end_of(self._path)
        if inode != self._inode:
            old_inode, _ = _end_of(f"{self._path}.old")
            if old_inode == self._inode:
                yield from self._read(f"{self._path}.old")
            self._inode, self._offset = inode, 0
        if size > self._offset:
            yield from self._read(self._path)

    def _read(self, path: str) -> Iterator[LookupEvent]:
        try:
            with open(path, "rb") as file:
                file.seek(self._offset)
                while data := file.read(_MOST_BYTES):
                    whole = data[: data.rfind(b"\n") + 1]
                    if not whole:
                        return
                    self._offset += len(whole)
                    file.seek(self._offset)
                    for line in whole.decode("utf-8", "replace").splitlines(keepends=True):
                        event = parse_event(line)
                        if event is not None:
                            yield event
        except OSError:
            return


def _end_of(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size


@dataclass(frozen=True, slots=True)
class RemovalRecord:
    """An entry that was removed: when (Unix seconds) and by which rule."""

    unix_s: float
    module: str
    reason: str


def record_removals(root: str, choices: Iterable[PruneDecision]) -> None:
    """Append removed entries; errors are ignored."""
    now = time.time()
    lines = "".join(f"{now:.3f} {choice.entry.module} {_line(choice.reason)}\n" for choice in choices)
    if not lines:
        return
    path = _path(root)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if os.path.exists(path) and os.stat(path).st_size > _MAX_REMOVED_BYTES:
            os.replace(path, f"{path}.old")
        with open(path, "ab") as file:
            file.write(lines.encode("utf-8", "replace"))
    except OSError:
        return


def read_removals(root: str) -> dict[str, RemovalRecord]:
    """Return the last recorded removal of each module; damaged lines are skipped."""
    found: dict[str, RemovalRecord] = {}
    for path in (f"{_path(root)}.old", _path(root)):
        try:
            with open(path, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    removed = _removed(line)
                    if removed is not None:
                        found[removed.module] = removed
        except OSError:
            continue
    return found


def _removed(line: str) -> RemovalRecord | None:
    parts = line.rstrip("\n").split(" ", 2)
    try:
        return RemovalRecord(float(parts[0]), parts[1], parts[2])
    except (ValueError, IndexError):
        return None


def _line(text: str) -> str:
    return text.replace("\n", " ")


def _path(root: str) -> str:
    return f"{counters_dir(root)}/removed"
