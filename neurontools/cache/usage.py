"""Last use and hit counters of entries.

Counters live in the user's state directory, one file per entry with one byte per hit: appending is atomic without a
lock, the size is the count and the mtime the last hit, also for a root that cannot be written to. A stamp in the entry
itself, renewed at most once an hour, tells other users of a shared root.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from neurontools.cache.layouts import COMPILER_PREFIX, STAMP
from neurontools.cache.location import counters_dir, is_remote, real_root

STAMP_PERIOD_S = 3600.0
_HITS = "hits"
_EVENTS = ("misses", "failures", "damaged")
_ORIGIN = "root"


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
        self._append(f"{self._directory}/{_HITS}")
        self._append(self._counter(entry))
        _renew_stamp(f"{entry}/{STAMP}")

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
        return _read(self._counter(entry))

    def hits_below(self, directory: str) -> dict[str, tuple[int, float]]:
        """Return hits and the time of the last one of each entry in a directory of the root, by the entry's name."""
        try:
            with os.scandir(f"{self._directory}/entries/{os.path.basename(directory)}") as counters:
                return {item.name: _of(item.stat()) for item in counters}
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
            _read(f"{self._directory}/{name}")[0] for name in (_HITS, *_EVENTS)
        )
        try:
            since = os.stat(f"{self._directory}/{_ORIGIN}").st_mtime
        except OSError:
            since = 0.0
        return UsageTotals(hits, misses, failures, damaged, since_unix_s=since)

    def _append(self, path: str) -> None:
        try:
            if not os.path.isdir(os.path.dirname(path)):
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
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
                f"{self._directory}/{_ORIGIN}", "x", encoding="utf-8", errors="surrogateescape"
            ) as origin:
                origin.write(self._root + "\n")
        except FileExistsError:
            return

    def _counter(self, entry: str) -> str:
        compiler, _, module = entry.rpartition("/")
        return f"{self._directory}/entries/{os.path.basename(compiler)}/{module}"


def _read(path: str) -> tuple[int, float]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0.0
    return _of(found)


def _of(found: os.stat_result) -> tuple[int, float]:
    return found.st_size, found.st_mtime


def _renew_stamp(path: str) -> None:
    try:
        if time.time() - os.stat(path).st_mtime < STAMP_PERIOD_S:
            return
        os.utime(path)
    except FileNotFoundError:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
        except OSError:
            return
    except OSError:
        return
