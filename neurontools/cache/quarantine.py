"""Where damaged entries go: `.quarantine` in the root. Nothing in it is ever found by a lookup; the oldest go first."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.files import remove_quietly
from neurontools.cache.locks import flock
from neurontools.cache.pruning.removal import delete_tree

if TYPE_CHECKING:
    from neurontools.cache.entry_reader import Entry

REASON = "reason.txt"
MOST_KEPT = 32
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def quarantine_entry(root: str, entry: Entry, reason: str) -> str:
    """Move an entry into the quarantine; return "" or why it had to stay.

    Args:
        root: the cache.
        entry: as it was judged; if it has changed since, it stays.
        reason: what is wrong, kept beside it.
    """
    try:
        descriptor = os.open(entry.path, _OPEN)
    except OSError as error:
        return error.strerror or "cannot be opened"
    try:
        if not flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return "in use"
        found = os.fstat(descriptor)
        if (found.st_ino, found.st_mtime_ns) != (entry.inode, entry.changed_ns):
            return "changed meanwhile"
        place = _new_place(root, os.path.basename(entry.path))
        os.rename(entry.path, f"{place}/{os.path.basename(entry.path)}")
        _keep_reason(place, entry.path, reason)
    except OSError as error:
        return error.strerror or "cannot be moved"
    finally:
        os.close(descriptor)
    return ""


def quarantine_neff(root: str, entry: str, reason: str) -> None:
    """Move the damaged NEFF of an entry that this process has locked aside; where that fails it stays."""
    remove_quietly(f"{entry}/{layout.DONE}")
    with suppress(OSError):
        place = _new_place(root, os.path.basename(entry))
        os.rename(f"{entry}/{layout.NEFF}", f"{place}/{layout.NEFF}")
        _keep_reason(place, entry, reason)


def quarantined(root: str) -> list[str]:
    """Return what is in the quarantine, the oldest first."""
    directory = f"{root}/{layout.QUARANTINE}"
    try:
        return [f"{directory}/{name}" for name in sorted(os.listdir(directory))]
    except OSError:
        return []


def _new_place(root: str, name: str) -> str:
    directory = f"{root}/{layout.QUARANTINE}"
    os.makedirs(directory, exist_ok=True)
    place = f"{directory}/{time.time_ns()}-{name}"
    os.mkdir(place)
    for old in quarantined(root)[:-MOST_KEPT]:
        delete_tree(old)
    return place


def _keep_reason(place: str, path: str, reason: str) -> None:
    with suppress(OSError), open(f"{place}/{REASON}", "w", encoding="utf-8", errors="replace") as file:
        file.write(f"{path}\n{reason}\n")
