"""`neuron-cache sync` as a library: moves what one root has and another lacks, entry by entry.

Whatever kills it, each entry is in the target whole or not at all as readers see it, and the next run moves the rest.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.entries import Scan, scan
from neurontools.cache.placing import staging
from neurontools.cache.pruning.preparing import prepare
from neurontools.cache.pruning.rules import Rules
from neurontools.cache.remote.errors import RemoteError
from neurontools.cache.remote.url import is_remote
from neurontools.cache.sync.ends import LocalSource, LocalTarget, NotMovedError
from neurontools.cache.sync.sync_plan import make_sync_plan
from neurontools.cache.walk import HINT, NotACacheError
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entries import Entry
    from neurontools.cache.pruning.preparing import Pruning
    from neurontools.cache.sync.ends import Source, Target
    from neurontools.cache.sync.sync_plan import Choice, SyncPlan

MOST_JOBS = 64


class Fate(StrEnum):
    """What became of an entry: moved by this run, by another one, left out for a reason, or failed on the way."""

    MOVED = "moved"
    PRESENT = "present"
    LEFT_OUT = "left out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an entry, and why where that needs words."""

    entry: Entry
    fate: Fate
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a sync did. `stopped` is the error that ended it before all was tried, None for none."""

    outcomes: tuple[Outcome, ...]
    stopped: NeuronToolsError | None

    def of(self, fate: Fate) -> tuple[Outcome, ...]:
        """Return the outcomes of one kind."""
        return tuple(outcome for outcome in self.outcomes if outcome.fate is fate)

    @property
    def is_complete(self) -> bool:
        """Whether nothing failed."""
        return self.stopped is None and not self.of(Fate.FAILED)


def plan_sync(
    source: str,
    target: str,
    choice: Choice,
    *,
    details: bool = False,
    listed: Callable[[int], None] | None = None,
) -> SyncPlan:
    """Return what a sync would move, touching nothing.

    Args:
        source: a root that exists.
        target: a root, which need not exist; its bucket must.
        choice: which entries.
        details: the choice looks at flags or names.
        listed: is told now and then how many objects of a bucket are listed.

    Raises:
        UsageError: both are the same, or one is in the other.
        NotACacheError: one holds other things, or there is no source.
        RemoteError: a bucket cannot be listed.
    """
    if _overlap(source, target):
        raise UsageError(f"{source} and {target} are the same or in each other", "name two caches")
    found = scan(source, details=details, listed=listed)
    if not found.exists:
        raise NotACacheError(f"there is no compile cache at {source}", HINT)
    return make_sync_plan(found, scan(target, details=details, listed=listed), choice)


def carry_out_sync(
    plan: SyncPlan, *, jobs: int = 8, progress: Callable[[int, int], None] | None = None
) -> SyncResult:
    """Move what a plan says.

    Args:
        plan: from `plan_sync`.
        jobs: so many entries at once.
        progress: is told how many entries of how many are done.

    Raises:
        UsageError: a number of jobs below 1 or above 64.
        NeuronToolsError: the target cannot be written to.
    """
    if not 1 <= jobs <= MOST_JOBS:
        raise UsageError(f"{jobs} jobs make no sense", f"give 1 to {MOST_JOBS}")
    if not plan.move:
        return SyncResult((), None)
    with ExitStack() as stack:
        source, target = _source(plan.source), _target(plan.target, stack)
        return _Sync(plan, source, target).run(plan.move, jobs, progress)


def prepare_deletion(plan: SyncPlan, grace_s: float | None = None) -> Pruning | None:
    """Return what removes the target's extra entries, by the rules of every removal; None where there are none.

    Raises:
        UsageError: the source has no entry at all, which is a mistake more often than a wish.
    """
    if not plan.move and not plan.present and not plan.left_out:
        raise UsageError(
            f"{plan.source} has none of the entries that are meant: --delete would remove all of {plan.target}",
            "'neuron-cache clean' removes everything",
        )
    if not plan.extra:
        return None
    rules = Rules(named=frozenset(entry.path for entry in plan.extra), grace_s=grace_s)
    return prepare(Scan(plan.target, exists=True, entries=plan.extra, skipped=0), rules)


class _Sync:
    """Entries on their way; stops at the first trouble that every entry would meet."""

    def __init__(self, plan: SyncPlan, source: Source, target: Target) -> None:
        self._plan = plan
        self._source = source
        self._target = target
        self._stop = threading.Event()
        self._stopped: NeuronToolsError | None = None

    def run(
        self, entries: tuple[Entry, ...], jobs: int, progress: Callable[[int, int], None] | None
    ) -> SyncResult:
        outcomes: list[Outcome] = []
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="neuron-cache-sync")
        try:
            for outcome in pool.map(self._move, entries):
                if outcome is not None:
                    outcomes.append(outcome)
                if progress is not None:
                    progress(len(outcomes), len(entries))
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
        return SyncResult(tuple(outcomes), self._stopped)

    def _move(self, entry: Entry) -> Outcome | None:
        if self._stop.is_set():
            return None
        try:
            moved = self._target.put(entry, self._source)
        except NotMovedError as error:
            return Outcome(entry, Fate.LEFT_OUT, str(error))
        except RemoteError as error:
            if not error.concerns_all:
                return Outcome(entry, Fate.FAILED, error.message)
            self._end(error)
            return None
        except OSError as error:
            words = error.strerror or str(error)
            if str(error.filename).startswith(self._plan.source + "/"):
                return Outcome(entry, Fate.FAILED, f"cannot be read: {words}")
            self._end(NeuronToolsError(f"cannot write to {self._plan.target}: {words}", "make room there"))
            return None
        return Outcome(entry, Fate.MOVED if moved else Fate.PRESENT)

    def _end(self, error: NeuronToolsError) -> None:
        if not self._stop.is_set():
            self._stopped = error
            self._stop.set()


def _source(root: str) -> Source:
    if not is_remote(root):
        return LocalSource(root)
    from neurontools.cache.remote.sync_ends import BucketSource

    return BucketSource(root)


def _target(root: str, stack: ExitStack) -> Target:
    if is_remote(root):
        from neurontools.cache.remote.sync_ends import BucketTarget

        return BucketTarget(root)
    try:
        layout.make_root(root)
        return LocalTarget(root, stack.enter_context(staging(root)))
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write to the compile cache {root}: {error.strerror or error}",
            "run this as the owner of the cache, on a host where it is writable",
        ) from error


def _overlap(one: str, other: str) -> bool:
    if is_remote(one) != is_remote(other):
        return False
    if not is_remote(one):
        one, other = os.path.realpath(one), os.path.realpath(other)
    first, second = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return first.startswith(second) or second.startswith(first)
