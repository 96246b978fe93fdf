"""What the journal of lookups and removals alone explains of a compile: a lost entry, a failure, another cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.units import format_time
from neurontools.cache.events import Events, LookupEvent, LookupEventKind, read_removals
from neurontools.cache.why.causes import Cause, CauseName, make_cause

if TYPE_CHECKING:
    from collections.abc import Iterator

# Times in a cache on another host's disk are that host's.
_CLOCK_SKEW_S = 2.0
_LOOKUPS = frozenset({LookupEventKind.MISS, LookupEventKind.HIT})


class CompileJournal:
    """The journal of one cache as it concerns one run.

    Args:
        root: the cache.
        events: everything recorded for it, oldest first.
        run: the run to explain.
    """

    def __init__(self, root: str, events: tuple[LookupEvent, ...], run: str) -> None:
        self._root = root
        self._run = run
        self._removals = read_removals(root)
        self._by_module: dict[str, list[LookupEvent]] = {}
        for event in events:
            self._by_module.setdefault(event.module, []).append(event)
        self._elsewhere: dict[str, list[tuple[float, str]]] | None = None

    def find_cause(self, event: LookupEvent, made_unix_s: float | None = None) -> Cause | None:
        """Return what the journal alone explains of a compile or a replayed failure.

        Args:
            event: the compile or failure.
            made_unix_s: when the entry that the cache has now was finished, None if it has none.
        """
        if event.kind is LookupEventKind.REPLAY:
            return make_cause(
                CauseName.FAILURE,
                "this graph failed to compile before, and that failure was reported again",
            )
        before = [e for e in self._by_module.get(event.module, ()) if e.unix_s < event.unix_s]
        if any(e.kind is LookupEventKind.DAMAGED and e.run == self._run for e in before):
            text = "the cache had it, but the stored NEFF was damaged; 'neuron-cache verify' checks the other entries"
            return make_cause(CauseName.REMOVED, text)
        lookups = [e for e in before if e.kind in _LOOKUPS]
        if lookups:
            return self._cause_of_loss(event, lookups[-1], made_unix_s)
        if any(e.kind is LookupEventKind.FAILURE for e in before):
            text = "an earlier compile of it failed, and it was tried again"
            return make_cause(CauseName.FAILURE, text)
        other_root = self._other_root(event)
        if not other_root:
            return None
        gone = "" if os.path.isdir(other_root) or "://" in other_root else ", which no longer exists"
        text = (
            f"the same graph with the same flags was compiled into another cache before: {other_root}{gone}"
        )
        return make_cause(CauseName.CACHE, text)

    def _cause_of_loss(self, event: LookupEvent, earlier: LookupEvent, made_unix_s: float | None) -> Cause:
        """Return why an entry that was there at an earlier lookup was compiled."""
        if made_unix_s is not None and made_unix_s < event.unix_s - event.seconds - _CLOCK_SKEW_S:
            text = f"the cache has had it since {format_time(made_unix_s)}, and it was compiled anyway"
            return make_cause(CauseName.CACHE, text)
        when = format_time(earlier.unix_s)
        removed = self._removals.get(event.module)
        if removed is not None and earlier.unix_s <= removed.unix_s <= event.unix_s:
            text = f"the cache had it at {when}; neuron-cache removed it at {format_time(removed.unix_s)} ({removed.reason})"
            return make_cause(CauseName.REMOVED, text)
        if earlier.run == self._run:
            text = "the same run compiled it twice: the result was not stored, or another rank did not see it"
            return make_cause(CauseName.CACHE, text)
        text = f"the cache had it at {when}, and the entry or the whole cache was deleted since"
        return make_cause(CauseName.REMOVED, text)

    def _other_root(self, event: LookupEvent) -> str:
        """Return this user's cache in which the same entry was last compiled or hit before, "" for none."""
        if self._elsewhere is None:
            self._elsewhere = {}
            for root in _other_roots(self._root):
                for found in Events(root).read():
                    if found.kind in _LOOKUPS:
                        self._elsewhere.setdefault(found.module, []).append((found.unix_s, root))
        before = [item for item in self._elsewhere.get(event.module, ()) if item[0] < event.unix_s]
        return max(before)[1] if before else ""


def _other_roots(root: str) -> Iterator[str]:
    """Yield the other caches that this user's counters know."""
    directory = f"{paths.state_dir()}/compile-cache"
    try:
        keys = sorted(os.listdir(directory))
    except OSError:
        return
    for key in keys:
        try:
            with open(f"{directory}/{key}/root", encoding="utf-8", errors="replace") as file:
                other_root = file.readline().rstrip("\n")
        except OSError:
            continue
        if other_root and other_root not in {root, os.path.realpath(root)}:
            yield other_root
