"""Which entries are loaded: every process holds a shared flock on the directory of each entry it has loaded."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from neurontools.base.files import READ_SAFELY
from neurontools.base.locks import SHARED, flock, is_same_file
from neurontools.cache.location import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable


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
