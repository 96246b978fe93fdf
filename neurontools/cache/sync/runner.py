"""`neuron-cache copy` between caches as a library: moves the entries that one root has and another lacks, entry by entry.

Readers of the target see each entry whole or not at all, even if the sync is killed; the next run moves the rest.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, table
from neurontools.base.units import format_size, format_size_both
from neurontools.cache import layouts
from neurontools.cache.entries import Scan, scan
from neurontools.cache.install import staging_directory
from neurontools.cache.location import is_remote
from neurontools.cache.pruning.prune import prepare_pruning
from neurontools.cache.pruning.rules import PruneRules
from neurontools.cache.remote.bucket import RemoteError
from neurontools.cache.sync.endpoints import (
    BucketSource,
    BucketTarget,
    DirectorySource,
    DirectoryTarget,
    NotMovedError,
)
from neurontools.cache.sync.plan import make_plan
from neurontools.cache.walk import missing_cache
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.pruning.prune import Pruning
    from neurontools.cache.pruning.removal import Removal
    from neurontools.cache.pruning.rules import PrunePlan
    from neurontools.cache.sync.endpoints import SyncSource, SyncTarget
    from neurontools.cache.sync.plan import SyncFilter, SyncPlan


MOST_JOBS = 64


class SyncOutcome(StrEnum):
    """What a sync did with an entry; PRESENT: another process has moved it meanwhile."""

    MOVED = "moved"
    PRESENT = "present"
    LEFT_OUT = "left out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SyncedEntry:
    """An entry, what the sync did with it, and why it was left out or failed."""

    entry: Entry
    outcome: SyncOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a sync did. `stopped` is the error that ended it early, None for none."""

    synced: tuple[SyncedEntry, ...]
    stopped: NeuronToolsError | None

    def select(self, outcome: SyncOutcome) -> tuple[SyncedEntry, ...]:
        """Return the entries with one outcome."""
        return tuple(item for item in self.synced if item.outcome is outcome)

    @property
    def is_complete(self) -> bool:
        """Whether nothing failed."""
        return self.stopped is None and not self.select(SyncOutcome.FAILED)


def plan_sync(
    source: str,
    target: str,
    selection: SyncFilter,
    *,
    details: bool = False,
    on_listed: Callable[[int], None] | None = None,
) -> SyncPlan:
    """Return what a sync would move, touching nothing.

    Args:
        source: an existing root.
        target: a root, which need not exist; its bucket must.
        selection: which entries.
        details: the selection needs flags or names.
        on_listed: called with the number of objects of a bucket that were listed.

    Raises:
        UsageError: both roots are the same, or one is in the other.
        NotACacheError: one is not a cache, or the source does not exist.
        RemoteError: a bucket cannot be listed.
    """
    if _overlap(source, target):
        raise UsageError(
            f"{source} and {target} are the same cache, or one contains the other", "name two separate caches"
        )
    found = scan(source, details=details, on_listed=on_listed)
    if not found.exists:
        raise missing_cache(source)
    return make_plan(found, scan(target, details=details, on_listed=on_listed), selection)


def run_sync(
    plan: SyncPlan, *, jobs: int = 8, progress: Callable[[int, int], None] | None = None
) -> SyncResult:
    """Move the entries of a plan.

    Args:
        plan: from `plan_sync`.
        jobs: number of entries to move at once.
        progress: called with the number of finished entries and of all.

    Raises:
        UsageError: jobs is below 1 or above 64.
        NeuronToolsError: the target cannot be written.
    """
    if not 1 <= jobs <= MOST_JOBS:
        raise UsageError(f"{jobs} jobs are out of range", f"use 1 to {MOST_JOBS}")
    if not plan.move:
        return SyncResult((), None)
    with ExitStack() as stack:
        source = BucketSource(plan.source) if is_remote(plan.source) else DirectorySource(plan.source)
        return _SyncRunner(plan, source, _open_target(plan.target, stack)).run(jobs, progress)


def prepare_deletion(plan: SyncPlan, grace_s: float | None = None) -> Pruning | None:
    """Return the removal of the target's extra entries, by the rules of every removal; None if there are none.

    Raises:
        UsageError: no entry of the source is selected, so that everything would be removed.
    """
    if not plan.move and not plan.present and not plan.left_out:
        raise UsageError(
            f"no entry of {plan.source} is selected: --delete would remove all of {plan.target}",
            "'neuron-cache rm --all' removes everything",
        )
    if not plan.extra:
        return None
    rules = PruneRules(named=frozenset(entry.path for entry in plan.extra), grace_s=grace_s)
    return prepare_pruning(Scan(plan.target, exists=True, entries=plan.extra, skipped=0), rules)


class _SyncRunner:
    """Moves entries side by side; stops at the first error that every entry would meet."""

    def __init__(self, plan: SyncPlan, source: SyncSource, target: SyncTarget) -> None:
        self._plan = plan
        self._source = source
        self._target = target
        self._stop = threading.Event()
        self._stopped: NeuronToolsError | None = None

    def run(self, jobs: int, progress: Callable[[int, int], None] | None) -> SyncResult:
        synced: list[SyncedEntry] = []
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="neuron-cache-sync")
        try:
            for item in pool.map(self._move, self._plan.move):
                if item is not None:
                    synced.append(item)
                if progress is not None:
                    progress(len(synced), len(self._plan.move))
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
        return SyncResult(tuple(synced), self._stopped)

    def _move(self, entry: Entry) -> SyncedEntry | None:
        if self._stop.is_set():
            return None
        try:
            moved = self._target.put(entry, self._source)
        except NotMovedError as error:
            return SyncedEntry(entry, SyncOutcome.LEFT_OUT, str(error))
        except RemoteError as error:
            if not error.concerns_all:
                return SyncedEntry(entry, SyncOutcome.FAILED, error.message)
            self._abort(error)
            return None
        except OSError as error:
            words = error.strerror or str(error)
            if str(error.filename).startswith(self._plan.source + "/"):
                return SyncedEntry(entry, SyncOutcome.FAILED, f"cannot be read: {words}")
            self._abort(NeuronToolsError(f"cannot write to {self._plan.target}: {words}", "free space there"))
            return None
        return SyncedEntry(entry, SyncOutcome.MOVED if moved else SyncOutcome.PRESENT)

    def _abort(self, error: NeuronToolsError) -> None:
        if not self._stop.is_set():
            self._stopped = error
            self._stop.set()


def _open_target(root: str, stack: ExitStack) -> SyncTarget:
    if is_remote(root):
        return BucketTarget(root)
    try:
        layouts.make_root(root)
        return DirectoryTarget(root, stack.enter_context(staging_directory(root)))
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write to the compile cache {root}: {error.strerror or error}",
            "run this as the owner of the cache, on a host where it is writable",
        ) from error


def _overlap(source: str, target: str) -> bool:
    if is_remote(source) != is_remote(target):
        return False
    if not is_remote(source):
        source, target = os.path.realpath(source), os.path.realpath(target)
    source, target = source.rstrip("/") + "/", target.rstrip("/") + "/"
    return source.startswith(target) or target.startswith(source)


def format_plan(plan: SyncPlan) -> str:
    """Return the entries to copy, with size and state, and the total."""
    rows = [(format_size(entry.size_bytes), entry.state.value, entry.path) for entry in plan.move]
    lines = [table(None, rows, "><<")] if rows else []
    number = plural(len(rows), "entry", "entries")
    lines.append(f"{number} to copy, {format_size_both(plan.move_bytes)}, to {plan.target}{_present(plan)}")
    return "\n".join(lines)


def left_out_rows(plan: SyncPlan, result: SyncResult | None) -> list[tuple[str, str]]:
    """Return path and reason of the selected entries that are not moved."""
    rows = [(item.path, item.reason) for item in plan.left_out]
    for outcome in (SyncOutcome.LEFT_OUT, SyncOutcome.FAILED) if result is not None else ():
        rows += [(item.entry.path, item.reason) for item in result.select(outcome)] if result else []
    return rows


def format_result(plan: SyncPlan, result: SyncResult) -> str:
    """Return what was moved."""
    moved = result.select(SyncOutcome.MOVED)
    size = format_size_both(sum(item.entry.size_bytes for item in moved))
    text = (
        f"{plural(len(moved), 'entry', 'entries')} copied, {size}, to {plan.target}{_present(plan, result)}"
    )
    failed = result.select(SyncOutcome.FAILED)
    return f"{text}; {len(failed)} failed" if failed else text


def format_stopped(plan: SyncPlan, result: SyncResult) -> str:
    """Return how far a sync came that ended early."""
    remaining = len(plan.move) - len(result.synced)
    moved = plural(len(result.select(SyncOutcome.MOVED)), "entry", "entries")
    return f"stopped after {moved}, {remaining} left; run the command again to continue"


def sync_json(
    plan: SyncPlan, result: SyncResult | None, deletion: PrunePlan | None, removal: Removal | None
) -> dict[str, Any]:
    """Return the JSON form of a plan (`result` None) or of its result."""

    def select(outcome: SyncOutcome) -> list[Entry]:
        return [] if result is None else [item.entry for item in result.select(outcome)]

    moved = plan.move if result is None else select(SyncOutcome.MOVED)
    present = [*plan.present, *select(SyncOutcome.PRESENT)]
    stopped = None if result is None else result.stopped
    planned = () if deletion is None else deletion.remove
    removed = planned if removal is None else removal.removed
    spared = [*(deletion.spare if deletion is not None else ()), *(removal.spared if removal else ())]
    return {
        "from": plan.source,
        "to": plan.target,
        "dry_run": result is None,
        "moved": _entries(moved),
        "moved_bytes": sum(entry.size_bytes for entry in moved),
        "present": [entry.path for entry in present],
        "left_out": [
            {"path": printable(path), "reason": reason} for path, reason in left_out_rows(plan, result)
        ],
        "failed": len(select(SyncOutcome.FAILED)),
        "removed": _entries([choice.entry for choice in removed]),
        "spared": [{"path": choice.entry.path, "reason": choice.reason} for choice in spared],
        "stopped": None if stopped is None else stopped.message,
    }


def _present(plan: SyncPlan, result: SyncResult | None = None) -> str:
    number = len(plan.present) + (0 if result is None else len(result.select(SyncOutcome.PRESENT)))
    return f"; {number} already there" if number else ""


def _entries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [
        {"path": entry.path, "state": entry.state.value, "size_bytes": entry.size_bytes} for entry in entries
    ]
