"""What this user's own journal tells of a compile: deleted, removed, damaged, in another cache, failed before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.cache.events import CacheEvent, EventKind, Events, RemovalRecord, read_removals
from neurontools.cache.tables import moment
from neurontools.cache.why.cause import Cause, CauseName, Confidence

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of a cache on another host's disk, times are that host's.
_CLOCKS_APART_S = 2.0
_KNOWN = frozenset({EventKind.MISS, EventKind.HIT})


class Journal:
    """The journal of one root around one run.

    Args:
        root: the cache.
        events: all that is recorded of it, oldest first.
        run: the run to explain.
    """

    def __init__(self, root: str, events: tuple[CacheEvent, ...], run: str) -> None:
        self._root = root
        self._run = run
        self._removals = read_removals(root)
        self._by_module: dict[str, list[CacheEvent]] = {}
        for event in events:
            self._by_module.setdefault(event.module, []).append(event)
        self._others: dict[str, list[tuple[float, str]]] | None = None

    def causes(self, event: CacheEvent, made_unix_s: float | None = None) -> Iterator[Cause]:
        """Yield what the journal alone explains of a compile or a replayed failure.

        Args:
            event: the compile or failure.
            made_unix_s: when the entry that the cache has now was finished, None where it has none.
        """
        before = [e for e in self._by_module.get(event.module, ()) if e.unix_s < event.unix_s]
        if event.kind is EventKind.REPLAY:
            yield Cause(
                CauseName.REPLAYED,
                Confidence.CERTAIN,
                "the cache remembers that this graph failed to compile, and gave that failure again",
                "'neuron-cache show' prints the error; after a fix, NEURON_CC_FLAGS=--retry_failed_compilation or "
                "'neuron-cache prune --failed' tries again",
            )
            return
        damaged = any(e.kind is EventKind.DAMAGED and e.run == self._run for e in before)
        earlier = [e for e in before if e.kind in _KNOWN]
        if damaged:
            yield Cause(
                CauseName.DAMAGED,
                Confidence.CERTAIN,
                "the cache had it, but the stored NEFF was damaged",
                "'neuron-cache verify' checks the rest",
            )
        elif any(e.kind is EventKind.FAILURE for e in before) and not earlier:
            yield Cause(
                CauseName.RETRIED,
                Confidence.CERTAIN,
                "an earlier compile of it failed, and it was tried again",
            )
        elif earlier:
            if made_unix_s is not None and made_unix_s < event.unix_s - event.seconds - _CLOCKS_APART_S:
                yield _passed_by(made_unix_s)
            else:
                yield self._vanished(event, earlier[-1], self._removals.get(event.module))
        else:
            other = self._other_root(event)
            if other:
                yield Cause(
                    CauseName.OTHER_CACHE,
                    Confidence.CERTAIN,
                    f"the same graph with the same flags was compiled before into another cache: {other}"
                    + ("" if os.path.isdir(other) or "://" in other else ", which is gone"),
                    "use one cache: NEURON_COMPILE_CACHE_URL or --cache_dir of NEURON_CC_FLAGS, which wins",
                )

    def _vanished(self, event: CacheEvent, earlier: CacheEvent, removed: RemovalRecord | None) -> Cause:
        when = moment(earlier.unix_s)
        if removed is not None and earlier.unix_s <= removed.unix_s <= event.unix_s:
            return Cause(
                CauseName.PRUNED,
                Confidence.CERTAIN,
                f"the cache had it at {when}; neuron-cache removed it at {moment(removed.unix_s)} ({removed.reason})",
                "'neuron-cache pin' keeps an entry; a wider policy keeps more",
            )
        if earlier.run == self._run:
            return Cause(
                CauseName.UNCACHED,
                Confidence.LIKELY,
                "the same run compiled it twice: the result was not stored, or another rank did not see it",
                "look for --no_cache, a full disk or a cache that cannot be written to",
            )
        return Cause(
            CauseName.DELETED,
            Confidence.LIKELY,
            f"it was compiled or found at {when} and was not there any more: the cache or the entry was deleted",
            "a cache in /tmp or in a container is gone after a restart; --no_cache stores nothing",
        )

    def _other_root(self, event: CacheEvent) -> str:
        """Return the cache of this user's in which the same entry was last compiled or hit before, "" for none."""
        if self._others is None:
            self._others = {}
            for root in _other_roots(self._root):
                for seen in Events(root).read():
                    if seen.kind in _KNOWN:
                        self._others.setdefault(seen.module, []).append((seen.unix_s, root))
        before = [seen for seen in self._others.get(event.module, ()) if seen[0] < event.unix_s]
        return max(before)[1] if before else ""


def _passed_by(made_unix_s: float) -> Cause:
    return Cause(
        CauseName.UNCACHED,
        Confidence.LIKELY,
        f"the cache had it since {moment(made_unix_s)} and has it still, and it was compiled all the same",
        "look for --no_cache in NEURON_CC_FLAGS, or a cache that this run could not read",
    )


def _other_roots(root: str) -> Iterator[str]:
    """Yield the other caches that this user's counters know."""
    above = f"{paths.state_dir()}/compile-cache"
    try:
        keys = sorted(os.listdir(above))
    except OSError:
        return
    for key in keys:
        try:
            with open(f"{above}/{key}/root", encoding="utf-8", errors="replace") as origin:
                other = origin.readline().rstrip("\n")
        except OSError:
            continue
        if other and other not in {root, os.path.realpath(root)}:
            yield other
