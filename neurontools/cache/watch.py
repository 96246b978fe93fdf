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
from neurontools.cache.entry_io import read_provenance
from neurontools.cache.events import EventTail, LookupEventKind
from neurontools.cache.lock_owner import list_waiters
from neurontools.cache.walk import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.entries import Entry
    from neurontools.cache.walk import EntryRef

_SHORT_S = 10.0
_WIDTH = len("interrupted")


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
    CACHE_FOUND = "cache found"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event. `seconds` is the compile time, or the time saved by a hit; None if unknown."""

    unix_s: float
    kind: WatchEventKind
    module: str = ""
    path: str = ""
    seconds: float | None = None
    words: str = ""


@dataclass(slots=True)
class WatchSummary:
    """Entries and compiles in progress, and totals since the watch began."""

    entries: int = 0
    compiling: int = 0
    longest_s: float = 0.0
    waiting: int = 0
    compiled: int = 0
    failed: int = 0
    hits: int = 0
    saved_s: float = 0.0

    def add(self, event: WatchEvent) -> None:
        """Count one event."""
        self.compiled += event.kind is WatchEventKind.COMPILED
        self.failed += event.kind is WatchEventKind.FAILED
        if event.kind is WatchEventKind.HIT:
            self.hits += 1
            self.saved_s += event.seconds or 0.0


@dataclass(frozen=True, slots=True)
class _KnownEntry:
    """An entry at the last poll; `changed_ns` is the mtime of its directory."""

    entry: Entry
    changed_ns: int
    waiters: frozenset[tuple[str, int]]


_LOOKUP_EVENTS = {LookupEventKind.HIT: WatchEventKind.HIT, LookupEventKind.DAMAGED: WatchEventKind.DAMAGED}


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
        self._known: dict[str, _KnownEntry] = {}
        self._exists: bool | None = None

    def poll(self) -> tuple[WatchEvent, ...]:
        """Return the events since the last poll, oldest first.

        Raises:
            NotACacheError: the root is not a compile cache.
        """
        is_first = self._exists is None
        found = [*self._poll_files(), *self._poll_lookups()]
        if is_first:
            found = [event for event in found if event.kind is WatchEventKind.COMPILING]
        for event in found:
            self.summary.add(event)
        locked = [known for known in self._known.values() if known.entry.state is State.LOCKED]
        held_s = [known.entry.lock.held_s for known in locked if known.entry.lock is not None]
        self.summary.entries = len(self._known)
        self.summary.compiling = len(locked)
        self.summary.longest_s = max(held_s, default=0.0)
        self.summary.waiting = sum(len(known.waiters) for known in locked)
        return tuple(sorted(found, key=lambda event: event.unix_s))

    def _poll_files(self) -> Iterator[WatchEvent]:
        found = walk(self.root)
        existed, self._exists = self._exists, found.exists
        if existed is not None and existed != found.exists:
            kind = WatchEventKind.CACHE_FOUND if found.exists else WatchEventKind.CACHE_GONE
            yield WatchEvent(time.time(), kind, path=self.root)
        for path in sorted(self._known.keys() - {place.path for place in found.places}):
            module = self._known.pop(path).entry.module
            yield WatchEvent(time.time(), WatchEventKind.REMOVED, module, path)
        reader = EntryReader(self.root)
        for place in found.places:
            yield from self._poll_entry(reader, place)

    def _poll_entry(self, reader: EntryReader, place: EntryRef) -> Iterator[WatchEvent]:
        known = self._known.get(place.path)
        try:
            changed_ns = os.lstat(place.path).st_mtime_ns
        except OSError:
            return
        # The owner of a lock may die without a change of the directory.
        if known and changed_ns == known.changed_ns and not known.entry.lock:
            return
        entry = reader.read(place, details=False)
        if entry is None:
            return
        waiters = frozenset((owner.host, owner.pid) for owner in list_waiters(entry.path))
        self._known[place.path] = _KnownEntry(entry, changed_ns, waiters)
        if known is None or _phase(known.entry) != _phase(entry):
            event = self._changed(entry, is_new=known is None)
            if event is not None:
                yield event
        for host, pid in sorted(waiters - (known.waiters if known else frozenset())):
            words = f"process {pid} on {host} waits"
            yield WatchEvent(time.time(), WatchEventKind.WAITING, entry.module, entry.path, words=words)

    def _changed(self, entry: Entry, *, is_new: bool) -> WatchEvent | None:
        """Return the event of an entry that is new or in another phase than before."""
        seconds, words = None, entry.note
        match entry.state:
            case State.LOCKED:
                kind, words = WatchEventKind.COMPILING, entry.lock.holder if entry.lock else ""
            case State.DONE:
                origin = read_provenance(entry.path)
                is_recent = origin is not None and origin.started_unix_s + origin.compile_s >= self._began
                kind = WatchEventKind.ARRIVED if is_new and not is_recent else WatchEventKind.COMPILED
                if kind is WatchEventKind.COMPILED and origin is not None:
                    seconds, words = origin.compile_s, f"process {origin.pid} on {origin.host}"
            case State.FAILED:
                kind = WatchEventKind.FAILED
            case State.INTERRUPTED:
                kind = WatchEventKind.INTERRUPTED
            case State.TODO:
                if not is_new:
                    return None
                kind = WatchEventKind.EXTRACTED
        return WatchEvent(time.time(), kind, entry.module, entry.path, seconds, words)

    def _poll_lookups(self) -> Iterator[WatchEvent]:
        for event in self._events.new():
            kind = _LOOKUP_EVENTS.get(event.kind)
            if kind is not None:
                path = next((path for path in self._known if path.endswith("/" + event.module)), "")
                yield WatchEvent(event.unix_s, kind, event.module, path, event.seconds, f"run {event.run}")


def _phase(entry: Entry) -> tuple[State, str]:
    """Return a key that changes with every phase of an entry: state, lock holder, time of the compile."""
    holder = entry.lock.holder if entry.lock is not None and entry.state is State.LOCKED else ""
    return entry.state, holder or (str(entry.made_unix_s) if entry.state is State.DONE else "")


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
