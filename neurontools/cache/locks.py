"""Locks of the cache: a lock file per entry while it is compiled, flocks on the root, directories and loaded entries.

Our lock file names its owner. It is written to a temporary file and then linked, so that no reader sees it empty; the
real wrapper's is a zero-byte file. A dead owner's lock is taken over under the root's flock, where it is checked again,
so that two waiters cannot both take it. Every process holds a shared flock on the directory of each entry it has
loaded.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neurontools.base.directories import Directory, check_ours, open_below
from neurontools.base.files import READ_SAFELY, open_regular
from neurontools.base.locks import SHARED, flock, is_locked, is_same_file, unlock
from neurontools.cache.layouts import LOCK, ROOT_LOCK, work_name
from neurontools.cache.location import is_remote, open_root
from neurontools.cache.lock_owner import (
    HEARTBEAT_S,
    Liveness,
    LockOwner,
    new_lock_owner,
    owner_liveness,
    parse_lock_owner,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_LOCK_BYTES = 4096
_REMOVAL_ATTEMPTS = 3
# Tokens of this process's locks whose files could not be removed, so that it does not wait for itself.
_left_behind: set[str] = set()

_HOLD_ATTEMPTS = 5
_HOLD_WAIT_S = 5.0
_HOLD_POLL_S = 0.02
# The first pid namespace (PROC_PID_INIT_INO of the kernel): in others, /proc/locks hides locks.
_FIRST_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock file as found. `age_s` counts from its last heartbeat; `owner` is None for a foreign lock."""

    path: str
    owner: LockOwner | None
    age_s: float
    liveness: Liveness

    @property
    def holder(self) -> str:
        """The process and host as text, and whether it lives."""
        if self.owner is None:
            return "an unnamed process"
        return f"process {self.owner.pid} on {self.owner.host} ({self.liveness})"

    def is_stale(self, age_s: float) -> bool:
        """Return whether its owner is dead, or it is unnamed and older than an age."""
        is_old = self.liveness is Liveness.UNKNOWN and self.age_s > age_s
        return is_old or self.liveness is Liveness.DEAD

    @property
    def held_s(self) -> float:
        """Seconds since the lock was taken; of an unnamed lock, since its last change."""
        return self.age_s if self.owner is None else max(0.0, time.time() - self.owner.started_unix_s)


def examine_lock(path: str) -> LockState | None:
    """Return the state of a lock file; None without one. Links and pipes are not locks."""
    return _examine(path, lambda: open_regular(path))


def examine_lock_in(directory: Directory, name: str) -> LockState | None:
    """Return the state of a lock file in an open directory; see `examine_lock`."""
    return _examine(f"{directory.path}/{name}", lambda: directory.open_file(name))


def _examine(path: str, open_lock: Callable[[], int]) -> LockState | None:
    try:
        descriptor = open_lock()
    except PermissionError:
        return LockState(path, None, 0.0, Liveness.UNKNOWN)
    except OSError:
        return None
    try:
        return parse_lock(path, os.read(descriptor, _MAX_LOCK_BYTES), os.fstat(descriptor).st_mtime)
    except OSError:
        return LockState(path, None, 0.0, Liveness.UNKNOWN)
    finally:
        os.close(descriptor)


def parse_lock(path: str, content: bytes, beat_unix_s: float) -> LockState:
    """Return the state of a lock from its content and the time of its last heartbeat."""
    owner = parse_lock_owner(content)
    age_s = max(0.0, time.time() - beat_unix_s)
    return LockState(path, owner, age_s, owner_liveness(owner, age_s))


@contextmanager
def root_lock(root: str) -> Iterator[None]:
    """Hold the root's lock, like the real tools; without effect on file systems without flock.

    Raises:
        OSError: the lock file cannot be opened for writing, or is not a regular file.
    """
    with open_root(root) as directory:
        descriptor = directory.open_file(ROOT_LOCK, os.O_RDWR | os.O_CREAT)
    try:
        flock(descriptor)
        yield
    finally:
        os.close(descriptor)


class EntryLock:
    """The lock on an entry that this process compiles, with its heartbeat."""

    def __init__(self, root: str, entry: str, owner: LockOwner) -> None:
        self._root = root
        self._entry = entry
        self._owner = owner
        self._released = threading.Event()
        self._heartbeat = threading.Thread(
            target=self._touch_lock, name="neuron-cache-heartbeat", daemon=True
        )
        self._heartbeat.start()

    def release(self) -> None:
        """Remove the lock, unless another process has taken it over."""
        self._released.set()
        self._heartbeat.join()
        with suppress(OSError), open_below(self._root, self._entry) as directory:
            try:
                with root_lock(self._root):
                    self._remove(directory)
            except OSError:
                self._remove(directory)

    def _remove(self, directory: Directory) -> None:
        for _ in range(_REMOVAL_ATTEMPTS):
            found = examine_lock_in(directory, LOCK)
            if found is None or found.owner != self._owner:
                return
            directory.remove_quietly(LOCK)
        _left_behind.add(self._owner.token)

    def _touch_lock(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            try:
                with open_below(self._root, self._entry) as directory:
                    directory.touch(LOCK)
            except OSError:
                return


def try_lock(root: str, entry: str) -> EntryLock | None:
    """Lock an entry if it is unlocked or its holder is dead.

    Returns:
        The lock, or None while a living or unnamed holder has it.

    Raises:
        OSError: the entry's directory is gone or cannot be written to, or its lock is a link or pipe.
    """
    open_root(root).close()
    with open_below(root, entry) as directory:
        found = examine_lock_in(directory, LOCK)
        if found is None:
            return _acquire(root, directory)
        if not _may_take_over(found):
            return None
        with root_lock(root):
            again = examine_lock_in(directory, LOCK)
            if again is not None and _may_take_over(again):
                directory.unlink(LOCK)
            return _acquire(root, directory)


def remove_lock_of_process(root: str, entry: str) -> None:
    """Remove the lock that this process holds on an entry, which a signal may have kept from becoming an `EntryLock`."""
    with suppress(OSError), open_below(root, entry) as directory:
        found = examine_lock_in(directory, LOCK)
        if found is None or found.owner is None:
            return
        us = replace(new_lock_owner(), started_unix_s=found.owner.started_unix_s, token=found.owner.token)
        if found.owner == us:
            directory.remove_quietly(LOCK)


def _acquire(root: str, directory: Directory) -> EntryLock | None:
    owner = new_lock_owner()
    return EntryLock(root, directory.path, owner) if _create(root, directory, owner) else None


def _may_take_over(lock: LockState) -> bool:
    is_ours = lock.owner is not None and lock.owner.token in _left_behind
    return is_ours or lock.liveness is Liveness.DEAD


def _create(root: str, directory: Directory, owner: LockOwner) -> bool:
    # The flock keeps other processes from removing the entry meanwhile.
    flock(directory.descriptor, SHARED)
    if not _is_current(root, directory):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory.path)
    try:
        return _create_linked(directory, owner)
    finally:
        unlock(directory.descriptor)


def _is_current(root: str, directory: Directory) -> bool:
    """Return whether the path of an open directory still leads to it."""
    try:
        with open_below(root, directory.path) as found:
            return os.path.samestat(os.fstat(found.descriptor), os.fstat(directory.descriptor))
    except FileNotFoundError:
        return False


def _create_linked(directory: Directory, owner: LockOwner) -> bool:
    temporary = directory.write_temporary(owner.to_bytes())
    try:
        directory.link(temporary, directory, LOCK)
    except FileExistsError:
        return _refuse_irregular(directory)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}:
            raise
        return _create_without_links(directory, owner)
    finally:
        directory.remove_quietly(temporary)
    return True


def _create_without_links(directory: Directory, owner: LockOwner) -> bool:
    try:
        directory.create(LOCK, owner.to_bytes())
    except FileExistsError:
        return _refuse_irregular(directory)
    return True


def _refuse_irregular(directory: Directory) -> bool:
    """Return False if another process has the lock; raise OSError for a link or pipe, which no process would release."""
    found = directory.status(LOCK)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"{directory.path}/{LOCK} is not a regular file")
    return False


@contextmanager
def directory_lock(root: str, name: str) -> Iterator[Directory]:
    """Create a work directory of this user in a root, hold its lock, and remove it at the end if it is empty.

    Raises:
        OSError: it cannot be made or opened, is a link, or belongs to another user.
    """
    with open_root(root) as above:
        while True:
            own_name = work_name(above, name)
            try:
                directory = above.ensure_subdirectory(own_name)
            except FileNotFoundError:
                if not os.fstat(above.descriptor).st_nlink:
                    raise
                continue  # another process has just removed it
            with directory:
                check_ours(directory)
                flock(directory.descriptor)
                # The previous holder may have removed it, and another process created it again.
                if above.is_same(own_name, directory.descriptor):
                    try:
                        yield directory
                    finally:
                        if above.is_same(own_name, directory.descriptor):
                            above.remove_if_empty(own_name)
                    return


def hold(entry: str) -> int | None:
    """Mark an entry as in use: a shared flock on its directory, which pruning respects.

    Returns:
        The descriptor to keep open, or None when the entry is gone or cannot be opened.
    """
    for _ in range(_HOLD_ATTEMPTS):
        try:
            descriptor = os.open(entry, READ_SAFELY | os.O_DIRECTORY)
        except FileNotFoundError:
            descriptor = None
        except OSError:
            return None
        if descriptor is not None:
            if _is_held(entry, descriptor):
                return descriptor
            os.close(descriptor)
        # A removal that finds a living lock puts the entry back.
        time.sleep(_HOLD_POLL_S)
    return None


def _is_held(entry: str, descriptor: int) -> bool:
    deadline = time.monotonic() + _HOLD_WAIT_S
    try:
        while not flock(descriptor, SHARED, wait=False) and time.monotonic() < deadline:
            time.sleep(_HOLD_POLL_S)
        return is_same_file(entry, descriptor)
    except OSError:
        return False


def release(held: int | None) -> None:
    """Release the mark of `hold`."""
    if held is not None:
        os.close(held)


def is_in_use(entry: str) -> bool:
    """Return whether a process on this host has loaded the entry; always False in a bucket."""
    return not is_remote(entry) and is_locked(entry, os.O_NOFOLLOW)


def in_use_checker(root: str) -> Callable[[str], bool]:
    """Return a predicate that tells whether an entry (by path) is loaded; made for checks of many entries.

    The kernel's list of flocks is read once for all of them, if it is complete.
    """
    held = None if is_remote(root) else _held_inodes(root)
    if held is None:
        return is_in_use
    return (lambda entry: _inode(entry) in held) if held else (lambda _: False)


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None


def _held_inodes(root: str) -> frozenset[int] | None:
    """Return the inodes with flocks on a root's device except the root's own, None if the list is unreliable."""
    try:
        if os.readlink("/proc/self/ns/pid") != _FIRST_NAMESPACE:
            return None
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        flock(descriptor, SHARED, wait=False)
        own = os.fstat(descriptor)
        with open("/proc/locks", encoding="utf-8", errors="replace") as locks:
            held = frozenset(_inodes(locks.readlines(), own.st_dev))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # On some file systems the device differs from that in the kernel's list.
    return held - {own.st_ino} if own.st_ino in held else None


def _inodes(lines: list[str], device: int) -> list[int]:
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}"
    found = []
    for line in lines:
        words = line.split()
        place = next((word for word in words if word.count(":") == 2), "")
        if "FLOCK" in words and place.startswith(wanted + ":"):
            found.append(int(place.rpartition(":")[2]))
    return found
