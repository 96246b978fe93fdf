"""Remove entries from a bucket: each is examined again, then its done marker goes first, so that no reader finds half.

A bucket does not show who has loaded an entry or when it was read: pins, locks and the time since the last change
decide, with the grace period of a network file system.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.entries import EntryReader
from neurontools.cache.events import record_removals
from neurontools.cache.layouts import SENTINEL
from neurontools.cache.lock_owner import Liveness
from neurontools.cache.pruning.removal import BrokenLock, Removal, changed_since
from neurontools.cache.pruning.rules import PruneDecision
from neurontools.cache.remote.bucket import Bucket
from neurontools.cache.remote.tree import BucketTree
from neurontools.cache.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.pruning.rules import PrunePlan, PruneRules

_JOBS = 16
_MARKERS = (f"/{layouts.DONE}", f"/{SENTINEL}")


def remove_from_bucket(
    plan: PrunePlan, rules: PruneRules, progress: Callable[[int, int], None] | None = None
) -> Removal:
    """Remove the entries of a plan; entries written, locked or pinned since are kept.

    Raises:
        RemoteError: the bucket cannot be read or written; earlier removals stand.
    """
    usage = Usage(plan.root)
    removed: list[PruneDecision] = []
    spared: list[PruneDecision] = []
    bucket = Bucket(plan.root)
    pool = ThreadPoolExecutor(_JOBS)
    try:
        reasons = pool.map(lambda choice: _remove(bucket, plan.root, choice.entry, rules), plan.remove)
        for number, (choice, reason) in enumerate(zip(plan.remove, reasons, strict=True)):
            if progress is not None:
                progress(number, len(plan.remove))
            if reason:
                spared.append(PruneDecision(choice.entry, reason))
            else:
                removed.append(choice)
                usage.forget(choice.entry.path)
    finally:
        pool.shutdown(cancel_futures=True)
        record_removals(plan.root, removed)
    return Removal(tuple(removed), tuple(spared))


def break_bucket_locks(root: str, locks: Sequence[BrokenLock], age_s: float) -> tuple[BrokenLock, ...]:
    """Remove lock objects that are still as stale as they were found; return those removed.

    Raises:
        RemoteError: the bucket cannot be read or written.
    """
    broken = []
    bucket = Bucket(root)
    for lock in locks:
        tree = BucketTree(root, bucket=bucket)
        now = tree.examine_lock(lock.path)
        if now is None or now.liveness is Liveness.ALIVE:
            continue
        if now.liveness is Liveness.DEAD or now.age_s > age_s:
            bucket.delete([lock.path])
            broken.append(lock)
    return tuple(broken)


def _remove(bucket: Bucket, root: str, planned: Entry, rules: PruneRules) -> str:
    """Remove one entry; return "" or why it was kept."""
    tree = BucketTree(root, bucket=bucket)
    reason = changed_since(EntryReader(root, tree), planned, rules, network=True)
    if reason:
        return reason
    single = tree.stored(planned.path)
    paths = [stored.path for stored in tree.below(planned.path)] if single is None else [single.path]
    bucket.delete(sorted(paths, key=lambda path: not path.endswith(_MARKERS)))
    return ""
