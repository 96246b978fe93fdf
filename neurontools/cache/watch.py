"""What happens in a cache while it is watched, from its files and from the events of this user's lookups.

Between two polls only entries whose directory has changed are read again, so an idle cache costs one stat per entry.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.base.text import plural, printable
from neurontools.base.units import format_age
from neurontools.cache.entries import EntryReader
from neurontools.cache.entry_files import State
from neurontools.cache.events import EventKind, EventTail
from neurontools.cache.lock_owner import list_waiters
from neurontools.cache.provenance import read_provenance
from neurontools.cache.walk import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.entries import Entry
    from neurontools.cache.events import CacheEvent
    from neurontools.cache.walk import EntryRef


class WatchEventKind(StrEnum):
    """What happened to an entry or to the cache."""

    COMPILING = "compiling"
    COMPILED = "compiled"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    EXTRACTED = "extracted"
    ARRIVED = "arrived"
    REMOVED = "removed"
    WAITING = "waiting"
    HIT = "hit"
    DAMAGED = "damaged"
    CACHE_GONE = "cache gone"
    CACHE_BACK = "cache there"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event. `seconds` is the compile time, or the time saved by a hit; None if unknown."""

    unix_s: float
    kind: WatchEventKind
    module: str = ""
    path: str = ""
    seconds: float | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class WatchSummary:
    """Compiles in progress, and totals since the watch began."""

    entries: int = 0
    compiling: int = 0
    longest_s: float = 0.0
    waiting: int = 0
    compiled: int = 0
    failed: int = 0
    hits: int = 0
    saved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    entry: Entry
    waiters: frozenset[tuple[str, int]]
    since_unix_s: float


_OF_EVENTS = {EventKind.HIT: WatchEventKind.HIT, EventKind.DAMAGED: WatchEventKind.DAMAGED}


class CacheWatcher:
    """Watches a cache. The first poll only records the existing entries.

    Args:
        root: of a local cache, which need not exist yet.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.summary = WatchSummary()
        self._began = time.time()
        self._events = EventTail(root)
        self._seen: dict[str, _Seen] = {}
        self._stamps: dict[str, int] = {}
        self._exists: bool | None = None
        self._counts = dict.fromkeys((WatchEventKind.COMPILED, WatchEventKind.FAILED, WatchEventKind.HIT), 0)
        self._saved_s = 0.0

    def look(self) -> tuple[WatchEvent, ...]:
        """Return the events since the last poll, oldest first.

        Raises:
            NotACacheError: the root holds other things.
        """
        is_first = self._exists is None
        found = [*self._look_at_files(), *self._look_at_events()]
        if is_first:
            found = [item for item in found if item.kind is WatchEventKind.COMPILING]
        for item in found:
            if item.kind in self._counts:
                self._counts[item.kind] += 1
            if item.kind is WatchEventKind.HIT:
                self._saved_s += item.seconds or 0.0
        self.summary = self._summed_up()
        return tuple(sorted(found, key=lambda item: item.unix_s))

    def _look_at_files(self) -> Iterator[WatchEvent]:
        found = walk(self.root)
        yield from self._whole(exists=found.exists)
        gone = self._seen.keys() - {place.path for place in found.places}
        for path in sorted(gone):
            yield from self._removed(path)
        reader = EntryReader(self.root)
        for place in found.places:
            yield from self._look_at(reader, place)

    def _whole(self, *, exists: bool) -> Iterator[WatchEvent]:
        before, self._exists = self._exists, exists
        if before is not None and before != exists:
            yield WatchEvent(
                time.time(),
                WatchEventKind.CACHE_BACK if exists else WatchEventKind.CACHE_GONE,
                path=self.root,
            )

    def _removed(self, path: str) -> Iterator[WatchEvent]:
        seen = self._seen.pop(path)
        self._stamps.pop(path, None)
        yield WatchEvent(time.time(), WatchEventKind.REMOVED, seen.entry.module, path)

    def _look_at(self, reader: EntryReader, place: EntryRef) -> Iterator[WatchEvent]:
        seen = self._seen.get(place.path)
        try:
            stamp = os.lstat(place.path).st_mtime_ns
        except OSError:
            return
        # The owner of a lock may die without a change of the directory.
        if stamp == self._stamps.get(place.path) and not (seen and seen.entry.lock):
            return
        entry = reader.read(place, details=False)
        if entry is None:
            return
        waiters = frozenset((owner.host, owner.pid) for owner in list_waiters(entry.path))
        now = time.time()
        same = seen is not None and _phase(seen.entry) == _phase(entry)
        self._seen[place.path] = _Seen(entry, waiters, seen.since_unix_s if seen and same else now)
        self._stamps[place.path] = stamp
        if not same:
            yield from self._changed(seen.entry if seen else None, entry, now)
        for host, pid in sorted(waiters - (seen.waiters if seen else frozenset())):
            words = f"process {pid} on {host} waits"
            yield WatchEvent(now, WatchEventKind.WAITING, entry.module, entry.path, words=words)

    def _changed(self, before: Entry | None, entry: Entry, now: float) -> Iterator[WatchEvent]:
        def happened(kind: WatchEventKind, words: str = "", seconds: float | None = None) -> WatchEvent:
            return WatchEvent(now, kind, entry.module, entry.path, seconds, words)

        match entry.state:
            case State.LOCKED:
                yield happened(WatchEventKind.COMPILING, entry.lock.holder if entry.lock else "")
            case State.DONE:
                yield self._finished(before, happened(WatchEventKind.ARRIVED))
            case State.FAILED:
                yield happened(WatchEventKind.FAILED, entry.note)
            case State.INTERRUPTED:
                yield happened(WatchEventKind.INTERRUPTED, entry.note)
            case State.TODO if before is None:
                yield happened(WatchEventKind.EXTRACTED)

    def _finished(self, before: Entry | None, arrived: WatchEvent) -> WatchEvent:
        origin = read_provenance(arrived.path)
        fresh = origin is not None and origin.started_unix_s + origin.compile_s >= self._began
        if before is None and not fresh:
            return arrived
        if origin is None:
            return WatchEvent(arrived.unix_s, WatchEventKind.COMPILED, arrived.module, arrived.path)
        words = f"process {origin.pid} on {origin.host}"
        return WatchEvent(
            arrived.unix_s, WatchEventKind.COMPILED, arrived.module, arrived.path, origin.compile_s, words
        )

    def _look_at_events(self) -> Iterator[WatchEvent]:
        for event in self._events.new():
            kind = _OF_EVENTS.get(event.kind)
            if kind is not None:
                yield WatchEvent(
                    event.unix_s, kind, event.module, self._path_of(event), event.seconds, f"run {event.run}"
                )

    def _path_of(self, event: CacheEvent) -> str:
        return next((path for path in self._seen if path.endswith("/" + event.module)), "")

    def _summed_up(self) -> WatchSummary:
        now = time.time()
        locked = [seen for seen in self._seen.values() if seen.entry.state is State.LOCKED]
        return WatchSummary(
            entries=len(self._seen),
            compiling=len(locked),
            longest_s=max((now - _locked_since(seen) for seen in locked), default=0.0),
            waiting=sum(len(seen.waiters) for seen in locked),
            compiled=self._counts[WatchEventKind.COMPILED],
            failed=self._counts[WatchEventKind.FAILED],
            hits=self._counts[WatchEventKind.HIT],
            saved_s=self._saved_s,
        )


def _phase(entry: Entry) -> tuple[State, str]:
    """Return a key that changes with every phase of an entry: state, lock holder, time of the compile."""
    holder = entry.lock.holder if entry.lock is not None and entry.state is State.LOCKED else ""
    return entry.state, holder or (str(entry.made_unix_s) if entry.state is State.DONE else "")


def _locked_since(seen: _Seen) -> float:
    owner = seen.entry.lock.owner if seen.entry.lock is not None else None
    return owner.started_unix_s if owner is not None else seen.since_unix_s


_SHORT_S = 10.0
_WIDTH = len("interrupted")


def format_event(item: WatchEvent) -> str:
    """Return one event as a line: time, kind, seconds, entry, process or reason."""
    moment = datetime.fromtimestamp(item.unix_s).strftime("%H:%M:%S")  # noqa: DTZ006  the user's own clock
    seconds = "" if item.seconds is None else _seconds(item.seconds)
    parts = f"{moment}  {item.kind:<{_WIDTH}} {seconds:>8}  {item.module or item.path}"
    return printable(f"{parts}  {item.words}".rstrip())


def event_json(item: WatchEvent) -> str:
    """Return one event as a line of JSON."""
    return json.dumps(
        {
            "unix_s": round(item.unix_s, 3),
            "event": item.kind.value,
            "module": item.module or None,
            "path": item.path or None,
            "seconds": item.seconds,
            "words": item.words or None,
        }
    )


def format_summary(summary: WatchSummary) -> str:
    """Return the summary as one line."""
    compiling = f"{summary.compiling} compiling"
    if summary.compiling:
        compiling += f" (longest {_seconds(summary.longest_s)})"
    parts = [compiling]
    if summary.waiting:
        parts.append(f"{summary.waiting} waiting")
    parts += [f"{summary.compiled} compiled", f"{summary.failed} failed"]
    parts.append(plural(summary.hits, "hit", "hits") + f" saved {_seconds(summary.saved_s)}")
    parts.append(plural(summary.entries, "entry", "entries"))
    return ", ".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < _SHORT_S else format_age(seconds)
