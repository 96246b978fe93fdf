"""A list of a big root's entries in this user's cache directory, so that `ls --limit` need not read them all.

It says where entries are and holds facts of finished ones, for choosing what to show; what is shown is read fresh. It is
believed only while every directory that was listed has the inode and mtime that it had, and that mtime was old enough
when it was noted. In doubt it is not used, and made anew. Lookups never touch it.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.usage import root_key
from neurontools.cache.walk import EntryRef

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from neurontools.cache.entries import Entry

FEWEST_ENTRIES = 2000
_MOST_UNFINISHED = 2000
_FORMAT = 1
# A directory that changed so shortly before it was listed may change again within the same tick of its mtime.
_SETTLED_NS = 2_000_000_000
_COLUMNS = {"used": "used_unix_s", "made": "made_unix_s", "size": "size_bytes", "hits": "hits"}
_TABLES = """
CREATE TABLE about (format INTEGER, root TEXT, skipped INTEGER, made_ns INTEGER);
CREATE TABLE listed (path TEXT, inode INTEGER, changed_ns INTEGER);
CREATE TABLE entries (path TEXT, layout TEXT, compiler TEXT, module TEXT, finished INTEGER,
                      used_unix_s REAL, made_unix_s REAL, size_bytes INTEGER, hits INTEGER);
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """A directory as it was when its names were read."""

    path: str
    inode: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """Places among which the first of a listing are, and when the index was made (Unix seconds)."""

    places: tuple[EntryRef, ...]
    skipped: int
    made_unix_s: float


def index_path(root: str) -> str:
    """Return the file of a root's index."""
    return f"{paths.cache_home()}/compile-cache/{root_key(root)}.sqlite"


def note_listed(directories: Iterable[str]) -> tuple[Listed, ...] | None:
    """Return directories as they are now, None where one is gone."""
    try:
        return tuple(Listed(path, found.st_ino, found.st_mtime_ns) for path, found in _stats(directories))
    except OSError:
        return None


def write_index(
    root: str, entries: Sequence[Entry], skipped: int, listed: tuple[Listed, ...], started_ns: int
) -> None:
    """Make a root's index anew; one that cannot be written is not.

    Args:
        root: the cache.
        entries: all of them.
        skipped: number of names that no layout knows.
        listed: the directories that were read, as they were before.
        started_ns: when that was (Unix nanoseconds).
    """
    if any(directory.changed_ns + _SETTLED_NS > started_ns for directory in listed):
        return
    try:
        import sqlite3
    except ImportError:
        return
    path = index_path(root)
    aside = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with closing(sqlite3.connect(aside)) as database:
            _fill(database, (_FORMAT, root, skipped, started_ns), entries, listed)
        os.replace(aside, path)
    except (OSError, ValueError, sqlite3.Error):
        with suppress(OSError):
            os.unlink(aside)


def candidates(root: str, key: str, limit: int, *, descending: bool) -> Candidates | None:
    """Return the places of the first entries in an order, and of all unfinished ones; None when in doubt.

    Args:
        root: the cache.
        key: used, made, size or hits; another is always in doubt.
        limit: how many are wanted.
        descending: the largest first.
    """
    path = index_path(root)
    if key not in _COLUMNS or not os.path.exists(path):
        return None
    try:
        import sqlite3
    except ImportError:
        return None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return _chosen(database, root, _COLUMNS[key], limit, descending=descending)
    except (sqlite3.Error, OSError, ValueError, TypeError):
        with suppress(OSError):
            os.unlink(path)
        return None


def _chosen(
    database: sqlite3.Connection, root: str, column: str, limit: int, *, descending: bool
) -> Candidates | None:
    found = database.execute("SELECT format, root, skipped, made_ns FROM about").fetchone()
    if found is None or found[:2] != (_FORMAT, root):
        return None
    listed = tuple(Listed(*row) for row in database.execute("SELECT path, inode, changed_ns FROM listed"))
    if note_listed(directory.path for directory in listed) != listed:
        return None
    fields = "SELECT path, layout, compiler, module FROM entries WHERE finished = "
    unfinished = database.execute(fields + "0 LIMIT ?", (_MOST_UNFINISHED + 1,)).fetchall()
    if len(unfinished) > _MOST_UNFINISHED:
        return None
    order = f"1 ORDER BY {column} {'DESC' if descending else 'ASC'}, path LIMIT ?"
    first = database.execute(fields + order, (limit,)).fetchall()
    places = tuple(EntryRef(row[0], CacheLayout(row[1]), row[2], row[3]) for row in (*first, *unfinished))
    return Candidates(places, found[2], found[3] / 1e9)


def _fill(
    database: sqlite3.Connection,
    about: tuple[int, str, int, int],
    entries: Sequence[Entry],
    listed: tuple[Listed, ...],
) -> None:
    # The file is renamed when it is whole, so nothing in it need survive a crash.
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.executescript(_TABLES)
    database.execute("INSERT INTO about VALUES (?, ?, ?, ?)", about)
    rows = ((directory.path, directory.inode, directory.changed_ns) for directory in listed)
    database.executemany("INSERT INTO listed VALUES (?, ?, ?)", rows)
    database.executemany(
        "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (_row(entry) for entry in entries)
    )
    for column in _COLUMNS.values():
        database.execute(f"CREATE INDEX by_{column} ON entries (finished, {column}, path)")
    database.commit()


def _row(entry: Entry) -> tuple[str | int | float, ...]:
    finished = int(entry.state is State.DONE)
    return (
        entry.path,
        entry.layout.value,
        entry.compiler,
        entry.module,
        finished,
        entry.used_unix_s,
        entry.made_unix_s,
        entry.size_bytes,
        entry.hits,
    )


def _stats(directories: Iterable[str]) -> Iterable[tuple[str, os.stat_result]]:
    return ((path, os.lstat(path)) for path in directories)
