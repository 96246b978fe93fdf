"""The first entries of a big root in each order, kept in this user's cache directory for `ls --limit`.

The index holds the paths of the first finished entries in each order, and of all unfinished ones; what is shown is read
fresh. It is valid only while every directory that was listed has the same inode and mtime, and if that mtime was
already old when the index was made. Otherwise it is ignored and rebuilt. Lookups never use it.
"""

from __future__ import annotations

import heapq
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.files import remove_quietly, write_atomic
from neurontools.cache.entry_files import State
from neurontools.cache.fields import FIELDS
from neurontools.cache.location import root_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.cache.entries import Entry

MIN_ENTRIES = 2000
MAX_LIMIT = 200
ORDERS = tuple((key, descending) for key in ("used", "made", "size", "hits") for descending in (True, False))
_MAX_UNFINISHED = 2000
_FORMAT = 2
# A directory that changed this recently may change again within the same tick of its mtime.
_SETTLED_NS = 2_000_000_000

DirectoryStamps = list[list[str | int]]
"""Path, inode and mtime in nanoseconds of each directory that a scan has listed."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Paths of entries that contain the first of a listing, and when the index was made (Unix seconds)."""

    paths: tuple[str, ...]
    skipped: int
    made_unix_s: float


def index_path(root: str) -> str:
    """Return the path of a root's index."""
    return f"{paths.cache_home()}/compile-cache/{root_key(root)}.json"


def stamp_directories(directories: Iterable[str]) -> DirectoryStamps | None:
    """Return directories as they are now, None where one is gone."""
    try:
        found = [(path, os.lstat(path)) for path in directories]
    except OSError:
        return None
    return [[path, stat.st_ino, stat.st_mtime_ns] for path, stat in found]


def write_index(
    root: str, entries: Sequence[Entry], skipped: int, stamps: DirectoryStamps, started_ns: int
) -> None:
    """Replace a root's index; errors are ignored.

    Args:
        root: the cache.
        entries: all entries, sorted by path.
        skipped: number of names that no layout knows.
        stamps: the directories that were listed, as they were before.
        started_ns: when the listing began (Unix nanoseconds).
    """
    unfinished = [entry.path for entry in entries if entry.state is not State.DONE]
    is_settled = all(int(changed_ns) + _SETTLED_NS <= started_ns for _, _, changed_ns in stamps)
    if not is_settled or len(unfinished) > _MAX_UNFINISHED:
        return
    finished = [entry for entry in entries if entry.state is State.DONE]
    first = {}
    for key, descending in ORDERS:
        pick = heapq.nlargest if descending else heapq.nsmallest
        first[_order_name(key, descending)] = [
            entry.path for entry in pick(MAX_LIMIT, finished, key=FIELDS[key].stored)
        ]
    content = {
        "format": _FORMAT,
        "root": root,
        "skipped": skipped,
        "made_unix_s": started_ns / 1e9,
        "directories": stamps,
        "unfinished": unfinished,
        "first": first,
    }
    path = index_path(root)
    with suppress(OSError, ValueError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_atomic(path, json.dumps(content).encode(), mode=0o600, sync=False)


def read_candidates(root: str, key: str, limit: int, *, descending: bool) -> Candidates | None:
    """Return entries that contain the first of an order; None where there is no valid index for it.

    Args:
        root: the cache.
        key: name of the field.
        limit: number of entries wanted.
        descending: the largest first.
    """
    if (key, descending) not in ORDERS or limit > MAX_LIMIT:
        return None
    path = index_path(root)
    try:
        with open(path, "rb") as file:
            stored = json.loads(file.read())
        stamps = stored["directories"]
        is_valid = (stored["format"], stored["root"]) == (_FORMAT, root)
        if not is_valid or stamp_directories(str(stamp[0]) for stamp in stamps) != stamps:
            return None
        first = stored["first"][_order_name(key, descending)]
        return Candidates(
            tuple(str(item) for item in (*first[:limit], *stored["unfinished"])),
            int(stored["skipped"]),
            float(stored["made_unix_s"]),
        )
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        remove_quietly(path)
        return None


def _order_name(key: str, descending: bool) -> str:
    return f"{key}:{'desc' if descending else 'asc'}"
