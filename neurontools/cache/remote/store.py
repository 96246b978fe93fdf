"""A bucket behind the local copy that a run uses: missing entries are downloaded, compiled entries are uploaded.

The copy is a root like any other: processes of one host take turns by its locks, and a hit costs no request.
Hosts do not lock each other out: both compile, and the first that writes the done marker has finished the entry.
A bucket that does not answer or refuses costs one warning; the run goes on with the copy.

Removals examine each entry again and delete its done marker first, so that no reader finds half an entry. A bucket does
not show who has loaded an entry or when it was read: pins, locks and the time since the last change decide, with the
grace period of a network file system.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from neurontools.base.files import remove_quietly, sync_directory, temporary_name
from neurontools.base.interrupts import is_of_handler
from neurontools.cache import layouts, logs
from neurontools.cache.copy.plan import in_writing_order, is_copied
from neurontools.cache.entries import EntryReader
from neurontools.cache.entry_files import State
from neurontools.cache.events import Usage, record_removals
from neurontools.cache.layouts import SENTINEL
from neurontools.cache.pruning.removal import Removal, changed_since
from neurontools.cache.pruning.rules import PruneDecision
from neurontools.cache.remote.bucket import Bucket, RemoteError, RemoteErrorKind
from neurontools.cache.remote.transfer import upload_entry
from neurontools.cache.remote.tree import BucketTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.locks import LockState
    from neurontools.cache.pruning.rules import PrunePlan, PruneRules
    from neurontools.cache.remote.bucket import StoredObject

_JOBS = 16
_MARKERS = (f"/{layouts.DONE}", f"/{SENTINEL}")


class BucketStore:
    """A root in a bucket as one process uses it. Request errors are logged, once for each direction, never raised.

    Raises:
        MissingDependencyError: s3fs is not installed.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._bucket = Bucket(root)
        self._can_read = True
        self._can_write = True

    def fetch(self, entry: str, *, failures: bool) -> bool:
        """Copy an entry into the local copy, its done marker last; return whether there was one.

        Args:
            entry: its directory in the copy, locked by this process.
            failures: fetch a cached failure, too.

        Raises:
            OSError: the copy cannot be written.
        """
        if not self._can_read:
            return False
        try:
            return self._fetch(entry, failures=failures)
        except RemoteError as error:
            self._can_read = not error.concerns_all
            # Credentials that cannot read may still write; an unreachable bucket is waited for only once.
            self._can_write = self._can_read or error.kind is RemoteErrorKind.DENIED
            self._warn("read", error)
            return False

    def send(self, entry: str, state: State, *, replace: bool) -> None:
        """Write an entry of the local copy to the bucket, unless it is finished there.

        Args:
            entry: its directory in the copy.
            state: DONE or FAILED.
            replace: the finished entry in the bucket is damaged.
        """
        if not self._can_write:
            return
        try:
            names = in_writing_order([name for name in os.listdir(entry) if is_copied(name, state)])
            files = {name: f"{entry}/{name}" for name in names}
            upload_entry(self._bucket, files, self._path(entry), replace=replace)
        except RemoteError as error:
            self._can_write = not error.concerns_all
            self._warn("write", error)
        except OSError as error:
            if is_of_handler(error):
                raise
            text = f"Cannot send {entry} to {self.root}: {error.strerror or error}"
            logs.log(logging.WARNING, logs.CACHE, text)

    def _fetch(self, entry: str, *, failures: bool) -> bool:
        path = self._path(entry)
        below = BucketTree(self.root, bucket=self._bucket).below(path)
        found = {stored.path.removeprefix(path + "/"): stored for stored in below}
        if layouts.NEFF in found and layouts.DONE in found:
            state = State.DONE
        elif failures and layouts.LOG in found and layouts.NEFF not in found:
            state = State.FAILED
        else:
            return False
        # Only what a lookup reads: a tag's name may be anything.
        names = [name for name in found if is_copied(name, state) and not name.startswith(".")]
        for name in in_writing_order(names):
            self._download(found[name], f"{entry}/{name}")
        sync_directory(entry)
        logs.log(logging.INFO, logs.CACHE, f"Copied {path} to {entry}")
        return True

    def _download(self, stored: StoredObject, target: str) -> None:
        temporary = temporary_name(os.path.dirname(target))
        try:
            self._bucket.download(stored, temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            remove_quietly(temporary)

    def _path(self, entry: str) -> str:
        above, _, module = entry.rpartition("/")
        return f"{self.root}/{os.path.basename(above)}/{module}"

    def _warn(self, doing: str, error: RemoteError) -> None:
        text = (
            f"Cannot {doing} the compile cache {self.root}: {error.message}. Continuing with the local copy."
        )
        logs.log(logging.WARNING, logs.CACHE, text)


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
        record_removals(plan.root, [(choice.entry.module, choice.reason) for choice in removed])
    return Removal(tuple(removed), tuple(spared))


def break_bucket_locks(root: str, locks: Sequence[LockState], age_s: float) -> tuple[LockState, ...]:
    """Remove lock objects that are still as stale as they were found; return those removed.

    Raises:
        RemoteError: the bucket cannot be read or written.
    """
    broken = []
    bucket = Bucket(root)
    for lock in locks:
        now = BucketTree(root, bucket=bucket).examine_lock(lock.path)
        if now is not None and now.is_stale(age_s):
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
