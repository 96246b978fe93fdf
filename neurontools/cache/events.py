"""The activity of one user's processes in one root: journals of lookups and removals, hit counters, last use.

A line of `events` is `time run event seconds module`, a line of `removed` is `time module reason`. Lines are appended
whole, so processes need no lock. A file that has grown is renamed once, and the previous one is dropped.

Counters are files in the same directory, one for each entry with one byte for each hit: the size is the count, the mtime
the last hit. They work for read-only roots too. A stamp in the entry itself, renewed at most once an hour, shows other
users of a shared root when the entry was last used.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING

from neurontools import env, paths
from neurontools.cache.layouts import COMPILER_PREFIX, STAMP, open_entry, root_of
from neurontools.cache.location import counters_dir, is_remote, open_root, real_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_BYTES = 8 << 20
_RUN_VARIABLES = (env.CACHE_RUN, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_EVENT_FIELDS = 5
_TAIL_READ_BYTES = 1 << 20
_MAX_REMOVED_BYTES = 4 << 20

STAMP_PERIOD_S = 3600.0
_HIT_COUNTER = "hits"
_EVENT_COUNTERS = ("misses", "failures", "damaged")
_ROOT_FILE = "root"


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
            paths.make_private(self._directory)
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
        if len(parts) == _EVENT_FIELDS and line.endswith("\n"):
            unix_s, seconds = float(parts[0]), float(parts[3])
            if isfinite(unix_s) and isfinite(seconds):
                return LookupEvent(unix_s, parts[1], LookupEventKind(parts[2]), seconds, parts[4])
    except ValueError:
        pass
    return None


class EventTail:
    """Reads new events of this user for one root."""

    def __init__(self, root: str) -> None:
        self._path = events_path(root)
        self._inode, self._offset = _file_end(self._path)

    def new(self) -> Iterator[LookupEvent]:
        """Yield the events since the last call; an incomplete line is read with the next call."""
        inode, size = _file_end(self._path)
        if inode != self._inode:
            old_inode, _ = _file_end(f"{self._path}.old")
            if old_inode == self._inode:
                yield from self._read(f"{self._path}.old")
            self._inode, self._offset = inode, 0
        if size > self._offset:
            yield from self._read(self._path)

    def _read(self, path: str) -> Iterator[LookupEvent]:
        try:
            with open(path, "rb") as file:
                file.seek(self._offset)
                while data := file.read(_TAIL_READ_BYTES):
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


def _file_end(path: str) -> tuple[int, int]:
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


def record_removals(root: str, removed: Iterable[tuple[str, str]]) -> None:
    """Append removed entries, each a module and the rule that removed it; errors are ignored."""
    now = time.time()
    lines = "".join(f"{now:.3f} {module} {' '.join(reason.splitlines())}\n" for module, reason in removed)
    if not lines:
        return
    path = _path(root)
    try:
        paths.make_private(os.path.dirname(path))
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
                    removed = _parse_removal(line)
                    if removed is not None:
                        found[removed.module] = removed
        except OSError:
            continue
    return found


def _parse_removal(line: str) -> RemovalRecord | None:
    parts = line.rstrip("\n").split(" ", 2)
    try:
        return RemovalRecord(float(parts[0]), parts[1], parts[2])
    except (ValueError, IndexError):
        return None


def _path(root: str) -> str:
    return f"{counters_dir(root)}/removed"


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Lookups of this user's processes in one root since `since_unix_s` (0.0: none yet)."""

    hits: int
    misses: int
    failures: int
    damaged: int
    since_unix_s: float

    @property
    def hit_share(self) -> float | None:
        """Hits among lookups (0..1), None before the first."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None


class Usage:
    """The counters of one root. Errors are ignored: a counter that cannot be written is not counted."""

    def __init__(self, root: str) -> None:
        self._root = real_root(root)
        self._directory = counters_dir(root)

    def count_hit(self, entry: str) -> None:
        """Count a hit of an entry and note its use."""
        self._append(f"{self._directory}/{_HIT_COUNTER}")
        self._append(self._counter(entry))
        _renew_stamp(entry)

    def count(self, event: str) -> None:
        """Count one of `misses`, `failures` and `damaged`."""
        self._append(f"{self._directory}/{event}")

    def forget(self, entry: str) -> None:
        """Delete the counter of a removed entry."""
        try:
            os.unlink(self._counter(entry))
        except OSError:
            pass

    def hits(self, entry: str) -> tuple[int, float]:
        """Return an entry's hits and the time of the last one (Unix seconds, 0.0 for none)."""
        return _read_counter(self._counter(entry))

    def hits_below(self, directory: str) -> dict[str, tuple[int, float]]:
        """Return hits and the time of the last one of each entry in a directory of the root, by the entry's name."""
        try:
            with os.scandir(f"{self._directory}/entries/{os.path.basename(directory)}") as counters:
                return {item.name: _hits_and_time(item.stat()) for item in counters}
        except OSError:
            return {}

    def orphan_counters(self) -> list[str]:
        """Return the counters of removed entries of the current layout; none for a bucket."""
        if is_remote(self._root):
            return []
        counters = f"{self._directory}/entries"
        return sorted(
            f"{directory}/{name}"
            for directory, _, names in os.walk(counters)
            for name in names
            if os.path.basename(directory).startswith(COMPILER_PREFIX)
            and not os.path.lexists(f"{self._root}{directory.removeprefix(counters)}/{name}")
        )

    def totals(self) -> UsageTotals:
        """Return the root's totals."""
        hits, misses, failures, damaged = (
            _read_counter(f"{self._directory}/{name}")[0] for name in (_HIT_COUNTER, *_EVENT_COUNTERS)
        )
        try:
            since = os.stat(f"{self._directory}/{_ROOT_FILE}").st_mtime
        except OSError:
            since = 0.0
        return UsageTotals(hits, misses, failures, damaged, since_unix_s=since)

    def _append(self, path: str) -> None:
        try:
            if not os.path.isdir(os.path.dirname(path)):
                paths.make_private(os.path.dirname(path))
                self._note_origin()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, b".")
            finally:
                os.close(descriptor)
        except OSError:
            return

    def _note_origin(self) -> None:
        try:
            with open(
                f"{self._directory}/{_ROOT_FILE}", "x", encoding="utf-8", errors="surrogateescape"
            ) as origin:
                origin.write(self._root + "\n")
        except FileExistsError:
            return

    def _counter(self, entry: str) -> str:
        compiler, _, module = entry.rpartition("/")
        return f"{self._directory}/entries/{os.path.basename(compiler)}/{module}"


def _read_counter(path: str) -> tuple[int, float]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0.0
    return _hits_and_time(found)


def _hits_and_time(found: os.stat_result) -> tuple[int, float]:
    return found.st_size, found.st_mtime


def _renew_stamp(entry: str) -> None:
    with suppress(OSError):
        if time.time() - os.lstat(f"{entry}/{STAMP}").st_mtime < STAMP_PERIOD_S:
            return  # the usual case, without the verified descriptors that a write needs
    with suppress(OSError), open_entry(entry) as directory:
        found = directory.status(STAMP)
        open_root(root_of(entry)).close()
        if found is None:
            directory.create(STAMP)
        else:
            directory.touch(STAMP)
