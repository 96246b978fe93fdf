"""Carrying out a plan: rename into a trash inside the root, check again, delete.

Files that killed removals and copies left in a root are found and removed here too.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.directories import Directory, check_ours, open_parent
from neurontools.base.locks import flock
from neurontools.cache import layouts
from neurontools.cache.entries import Entry, EntryReader
from neurontools.cache.events import Usage, record_removals
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.location import is_network_root, is_remote, open_root
from neurontools.cache.lock_owner import Liveness
from neurontools.cache.locks import LockState, directory_lock, examine_lock_in, root_lock
from neurontools.cache.pruning.rules import (
    NETWORK_GRACE_S,
    PruneDecision,
    PrunePlan,
    PruneRules,
    reason_to_spare,
)
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_PROGRESS_STEP = 64


@dataclass(frozen=True, slots=True)
class Removal:
    """The removed entries, and those spared at the last check."""

    removed: tuple[PruneDecision, ...]
    spared: tuple[PruneDecision, ...]

    @property
    def freed_bytes(self) -> int:
        """Total size of the removed entries."""
        return sum(choice.entry.size_bytes for choice in self.removed)


def remove_entries(
    plan: PrunePlan,
    rules: PruneRules,
    *,
    network: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Removal:
    """Remove the entries of a plan; those used, locked or loaded since, and those that cannot be removed, are spared.

    Args:
        plan: the entries to remove.
        rules: the rules of the plan.
        network: the root is on a network file system, where flock shows nothing.
        progress: called periodically with the number of finished entries and the total.

    Raises:
        NeuronToolsError: the root cannot be written to.
    """
    usage = Usage(plan.root)
    removed, spared = [], []
    try:
        with ExitStack() as stack:
            if any(_is_real_wrappers(choice.entry) for choice in plan.remove):
                stack.enter_context(root_lock(plan.root))
            trash = stack.enter_context(_trash(plan.root))
            reader = EntryReader(plan.root)
            for number, choice in enumerate(plan.remove):
                if progress is not None and number % _PROGRESS_STEP == 0:
                    progress(number, len(plan.remove))
                reason = _remove(reader, plan.root, trash, choice.entry, rules, network=network)
                if reason:
                    spared.append(PruneDecision(choice.entry, reason))
                else:
                    removed.append(choice)
                    usage.forget(choice.entry.path)
            record_removals(plan.root, [(choice.entry.module, choice.reason) for choice in removed])
    except OSError as error:
        raise NeuronToolsError(
            f"cannot remove from the compile cache {plan.root}: {error.strerror}",
            "run this as the owner of the cache, on a host where it is writable",
        ) from error
    _remove_emptied(plan.root, {os.path.dirname(choice.entry.path) for choice in removed})
    return Removal(tuple(removed), tuple(spared))


def _remove_emptied(root: str, directories: set[str]) -> None:
    rest = directories
    while rest:
        emptied = {path for path in rest if path.startswith(root + "/") and _is_removed(root, path)}
        rest = {os.path.dirname(path) for path in emptied}


def _is_removed(root: str, path: str) -> bool:
    try:
        above, name = open_parent(root, path)
    except OSError:
        return False
    with above:
        return above.remove_if_empty(name)


def _is_real_wrappers(entry: Entry) -> bool:
    return entry.layout is CacheLayout.CURRENT and not entry.ours


def break_locks(root: str, locks: Sequence[LockState], age_s: float) -> tuple[LockState, ...]:
    """Remove lock files that are still stale; return those removed.

    Raises:
        NeuronToolsError: the root cannot be written to.
    """
    try:
        with root_lock(root):
            return tuple(lock for lock in locks if _break_lock(root, lock.path, age_s))
    except OSError as error:
        raise NeuronToolsError(
            f"cannot break locks in the compile cache {root}: {error.strerror}",
            "run this as the owner of the cache, on a host where it is writable",
        ) from error


def _break_lock(root: str, path: str, age_s: float) -> bool:
    try:
        directory, name = open_parent(root, path)
    except FileNotFoundError:
        return False
    with directory:
        current = examine_lock_in(directory, name)
        if current is None or not current.is_stale(age_s):
            return False
        directory.unlink(name)
        return True


@contextmanager
def _trash(root: str) -> Iterator[Directory]:
    """Create the trash for one prune at a time; it is deleted at the end with the leftovers of killed ones."""
    with directory_lock(root, layouts.TRASH) as trash:
        yield trash
        trash.remove_content()


def _remove(
    reader: EntryReader, root: str, trash: Directory, planned: Entry, rules: PruneRules, *, network: bool
) -> str:
    """Remove one entry; return "" or why it was spared."""
    try:
        above, name = open_parent(root, planned.path)
        with above, above.opened_item(name) as descriptor:
            if not flock(descriptor, wait=False):
                return "in use"
            reason = changed_since(reader, planned, rules, network=network)
            if reason:
                return reason
            trash_name = f"{os.getpid()}-{os.urandom(6).hex()}"
            above.rename(name, trash, trash_name)
            is_taken = not trash.is_same(trash_name, descriptor) or _has_living_lock(trash, trash_name)
            if is_taken and _put_back(trash, trash_name, above, name):
                return "taken by another process"
            trash.remove_tree(trash_name)
    except FileNotFoundError:
        return "already removed"
    except OSError as error:
        return f"cannot be removed: {error.strerror}"
    return ""


def remove_damaged(root: str, damaged: Entry) -> str:
    """Remove an entry that was found damaged; return "" or why it was kept."""
    if damaged.pinned:
        return "pinned"
    try:
        above, name = open_parent(root, damaged.path)
        with above, above.opened_item(name) as descriptor:
            if not flock(descriptor, wait=False):
                return "in use"
            status = os.fstat(descriptor)
            if (status.st_ino, status.st_mtime_ns) != (damaged.inode, damaged.changed_ns):
                return "changed meanwhile"
            if status.st_uid != os.geteuid():
                return f"it belongs to uid {status.st_uid}"
            with _trash(root) as trash:
                above.rename(name, trash, f"{os.getpid()}-{os.urandom(6).hex()}")
    except OSError as error:
        return error.strerror or "cannot be removed"
    return ""


def remove_leftover(root: str, path: str) -> None:
    """Remove a file below a root; errors are ignored."""
    with suppress(OSError):
        open_root(root).close()
        above, name = open_parent(root, path)
        with above:
            above.remove_tree(name)


def _put_back(trash: Directory, trash_name: str, above: Directory, name: str) -> bool:
    """Undo a removal; return False if another process has created the entry again."""
    try:
        trash.rename(trash_name, above, name)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    return True


def changed_since(reader: EntryReader, planned: Entry, rules: PruneRules, *, network: bool) -> str:
    """Return why an entry selected for removal must be kept now, "" if it may be removed."""
    found = reader.read(planned.place, details=False)
    if found is None:
        return "already removed"
    if found.state is not planned.state or found.used_unix_s > planned.used_unix_s:
        return "used meanwhile"
    return reason_to_spare(found, rules, time.time(), network=network)


def _has_living_lock(trash: Directory, trash_name: str) -> bool:
    try:
        directory = trash.subdirectory(trash_name)
    except NotADirectoryError:
        return False
    with directory:
        names = [name for name in directory.names() if name.endswith(layouts.LOCK_SUFFIX)]
        locks = [examine_lock_in(directory, name) for name in names]
    return any(lock is not None and lock.liveness is not Liveness.DEAD for lock in locks)


_ORIGINS = {layouts.IMPORTING: "left by a killed copy", layouts.TRASH: "left by a killed removal"}
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Orphan:
    """An orphaned file or directory: its size on disk and its origin."""

    path: str
    size_bytes: int
    words: str


def find_orphans(root: str) -> tuple[Orphan, ...]:
    """Return what killed processes left in a root, except in directories that a process is using.

    Where flock cannot show which directories are in use (network file systems), only files older than 24 h count.
    """
    if is_remote(root):
        return ()
    youngest = time.time() - NETWORK_GRACE_S if is_network_root(root) else None
    return tuple(
        Orphan(path, _size_bytes(path), words)
        for common, words in _ORIGINS.items()
        for name in layouts.work_names(common)
        for path in _orphans_in(root, name, youngest)
    )


def remove_orphan(root: str, path: str) -> bool:
    """Remove an orphan, unless a process is using its directory; return whether it is gone."""
    directory, name = os.path.split(path)
    with _lock_unused(root, os.path.basename(directory)) as found:
        if found is None:
            return not os.path.lexists(path)
        found.remove_tree(name)
        return found.status(name) is None


def is_orphan(root: str, path: str) -> bool:
    """Return whether only `remove_orphan` may remove a path."""
    return os.path.dirname(path) in {
        f"{root}/{name}" for common in _ORIGINS for name in layouts.work_names(common)
    }


def _orphans_in(root: str, name: str, youngest: float | None) -> list[str]:
    with _lock_unused(root, name) as found:
        paths = [] if found is None else [f"{root}/{name}/{left}" for left in found.names()]
    return paths if youngest is None else [path for path in paths if _changed_unix_s(path) < youngest]


@contextmanager
def _lock_unused(root: str, name: str) -> Iterator[Directory | None]:
    """Hold the lock of a directory of this user in a root; yield None if another process holds it or there is none."""
    with ExitStack() as stack:
        found = None
        with suppress(OSError):
            above = stack.enter_context(Directory.open(root))
            directory = stack.enter_context(above.subdirectory(name))
            check_ours(directory)
            found = directory if flock(directory.descriptor, wait=False) else None
        yield found


def _changed_unix_s(path: str) -> float:
    try:
        # A rename into the trash changes only the ctime.
        return os.lstat(path).st_ctime
    except OSError:
        return time.time()


def _size_bytes(path: str) -> int:
    try:
        size = os.lstat(path).st_blocks * _BLOCK_BYTES
        with os.scandir(path) as items:
            return size + sum(
                _size_bytes(item.path)
                if item.is_dir(follow_symlinks=False)
                else item.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                for item in items
            )
    except NotADirectoryError:
        return size
    except OSError:
        return 0
