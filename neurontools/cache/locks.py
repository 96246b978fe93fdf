"""Locks of the cache: a lock file per entry while it is compiled, flocks on the root, directories and loaded entries.

Our lock file names its owner and appears with its content (written aside, then linked), so that no reader sees it
empty; the real wrapper's is a zero-byte file. A dead owner's lock is taken over under the root's flock, where it is
checked again, so that two waiters cannot both take it. Every process holds a shared flock on the directory of each entry it has loaded.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.files import READ_SAFELY, remove_if_empty, remove_quietly, write_temporary
from neurontools.base.locks import SHARED, flock, is_same_file
from neurontools.cache.layouts import LOCK, ROOT_LOCK
from neurontools.cache.location import is_remote
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
# Tokens of this process's locks whose files could not be removed: it must not wait for itself.
_left_behind: set[str] = set()

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
    """Return the state of a lock file, None if there is none."""
    try:
        with open(path, "rb") as lock:
            content = lock.read(_MAX_LOCK_BYTES)
            beat = os.fstat(lock.fileno()).st_mtime
    except FileNotFoundError:
        return None
    except OSError:
        return LockState(path, None, 0.0, Liveness.UNKNOWN)
    return parse_lock(path, content, beat)


def parse_lock(path: str, content: bytes, beat_unix_s: float) -> LockState:
    """Return the state of a lock with some content and the time of its last heartbeat."""
    owner = parse_lock_owner(content)
    age_s = max(0.0, time.time() - beat_unix_s)
    return LockState(path, owner, age_s, owner_liveness(owner, age_s))


@contextmanager
def root_lock(root: str) -> Iterator[None]:
    """Hold the root's lock, like the real tools; without effect on file systems without flock.

    Raises:
        OSError: the lock file cannot be opened for writing.
    """
    descriptor = os.open(f"{root}/{ROOT_LOCK}", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        flock(descriptor)
        yield
    finally:
        os.close(descriptor)


class EntryLock:
    """The lock on an entry that this process compiles, with its heartbeat."""

    def __init__(self, root: str, path: str, owner: LockOwner) -> None:
        self._root = root
        self._path = path
        self._owner = owner
        self._released = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="neuron-cache-heartbeat", daemon=True)
        self._heart.start()

    def release(self) -> None:
        """Remove the lock, unless another process has taken it over."""
        self._released.set()
        self._heart.join()
        try:
            with root_lock(self._root):
                self._remove()
        except OSError:
            self._remove()

    def _remove(self) -> None:
        for _ in range(_REMOVAL_ATTEMPTS):
            found = examine_lock(self._path)
            if found is None or found.owner != self._owner:
                return
            remove_quietly(self._path)
        _left_behind.add(self._owner.token)

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            try:
                os.utime(self._path)
            except OSError:
                return


def try_lock(root: str, entry: str) -> EntryLock | None:
    """Lock an entry if it is unlocked or its holder is dead.

    Returns:
        The lock, or None while a living or unnamed holder has it.

    Raises:
        OSError: the entry's directory is gone or cannot be written to.
    """
    path = f"{entry}/{LOCK}"
    found = examine_lock(path)
    if found is None:
        owner = new_lock_owner()
        return EntryLock(root, path, owner) if _create(entry, path, owner) else None
    if not _may_take_over(found):
        return None
    with root_lock(root):
        again = examine_lock(path)
        if again is not None and _may_take_over(again):
            os.unlink(path)
        owner = new_lock_owner()
        return EntryLock(root, path, owner) if _create(entry, path, owner) else None


def _may_take_over(lock: LockState) -> bool:
    is_ours = lock.owner is not None and lock.owner.token in _left_behind
    return is_ours or lock.liveness is Liveness.DEAD


@contextmanager
def _unpruned(entry: str) -> Iterator[None]:
    """Keep other processes from removing an entry while a lock is created in it.

    Raises:
        FileNotFoundError: the entry is gone.
    """
    descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flock(descriptor, SHARED)
        if not is_same_file(entry, descriptor):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), entry)
        yield
    finally:
        os.close(descriptor)


def _create(entry: str, path: str, owner: LockOwner) -> bool:
    with _unpruned(entry):
        return _create_linked(entry, path, owner)


def _create_linked(entry: str, path: str, owner: LockOwner) -> bool:
    aside = write_temporary(entry, owner.to_bytes())
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}:
            raise
        return _create_without_links(path, owner)
    finally:
        remove_quietly(aside)
    return True


def _create_without_links(path: str, owner: LockOwner) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, owner.to_bytes())
    finally:
        os.close(descriptor)
    return True


@contextmanager
def directory_lock(path: str) -> Iterator[None]:
    """Create a directory, hold its lock, and remove it at the end if it is empty.

    Raises:
        OSError: it cannot be made or opened.
    """
    while True:
        descriptor = _opened(path)
        if descriptor is None:
            continue
        try:
            flock(descriptor)
            # The previous holder may have removed it, and another process created it again.
            if is_same_file(path, descriptor):
                try:
                    yield
                finally:
                    remove_if_empty(path)
                return
        finally:
            os.close(descriptor)


def _opened(path: str) -> int | None:
    """Create and open a directory; return None if another process has just removed it."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        if os.path.lexists(path) and not os.path.isdir(path):
            raise
        return None
    try:
        return os.open(path, _OPEN)
    except FileNotFoundError:
        return None


_HOLD_ATTEMPTS = 5
_HOLD_WAIT_S = 5.0
_HOLD_POLL_S = 0.02
# The first pid namespace (PROC_PID_INIT_INO of the kernel): in others, /proc/locks hides locks.
_FIRST_NAMESPACE = "pid:[4026531836]"


def hold(entry: str) -> int | None:
    """Mark an entry as in use: a shared flock on its directory, which pruning respects.

    Returns:
        The descriptor to keep open, or None when the entry is gone or cannot be opened.
    """
    for _ in range(_HOLD_ATTEMPTS):
        try:
            descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY)
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
    if is_remote(entry):
        return False
    try:
        descriptor = os.open(entry, READ_SAFELY)
    except OSError:
        return False
    try:
        return not flock(descriptor, wait=False)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def in_use_checker(root: str) -> Callable[[str], bool]:
    """Return a function that says of many entries, given by their paths, whether they are loaded.

    The kernel's list of flocks answers for all of them at once, where it is whole.
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
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
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
