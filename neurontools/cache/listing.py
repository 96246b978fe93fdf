"""Selecting, sorting and formatting entries for `neuron-cache ls`, and an index of big roots for `ls --limit`.

The index, in this user's cache directory, holds the paths of the first finished entries in each order and of all
unfinished ones; the shown entries are always read again. It is valid only while every directory that was listed has the
same inode and mtime, and if that mtime was already old when the index was made. Otherwise it is ignored and rebuilt.
Lookups never use it.
"""

from __future__ import annotations

import heapq
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.files import remove_quietly, write_atomic
from neurontools.base.json_reader import load_json, to_float
from neurontools.base.text import plural, printable, table, wrap_field
from neurontools.base.units import format_size_both
from neurontools.cache.entries import EntryReader, Scan, check_root_exists, read_entry, scan_walk
from neurontools.cache.entry_files import State
from neurontools.cache.events import Events
from neurontools.cache.fields import ALIASES, FIELDS, FieldKind, find_field
from neurontools.cache.filters import EntryFilter
from neurontools.cache.layouts import display_path
from neurontools.cache.location import LAST_USE_NOTE, is_remote, root_key
from neurontools.cache.walk import parse_entry_path, walk
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.location import Location

DirectoryStamps = list[list[str | int]]
"""Path, inode and mtime in nanoseconds of each directory that a scan has listed."""

DEFAULT_COLUMNS = ("state", "size", "age", "used", "hits", "compiler", "flags", "name", "module")
_SPARE_COLUMNS = ("flags", "compiler", "hits", "age", "name")

MIN_ENTRIES = 2000
MAX_LIMIT = 200
ORDERS = tuple((key, descending) for key in ("used", "made", "size", "hits") for descending in (True, False))
_MAX_UNFINISHED = 2000
_FORMAT = 2
# A directory that changed this recently may change again within the same tick of its mtime.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The field that entries are sorted by, and the direction."""

    key: str
    descending: bool

    @property
    def needs_details(self) -> bool:
        """Whether the field is read from the content of files."""
        return FIELDS[self.key].details


def parse_order(text: str) -> SortOrder:
    """Return the order of `KEY`, `KEY:asc` or `KEY:desc`; by default numbers and times are descending, text ascending.

    Raises:
        UsageError: no such key or direction.
    """
    key, separator, direction = text.partition(":")
    field = find_field(key)
    if field is None:
        raise UsageError(f"cannot sort by {key!r}", f"choose one of {', '.join([*FIELDS, *ALIASES])}")
    if separator and direction not in {"asc", "desc"}:
        raise UsageError(f"invalid sort direction {direction!r}", "use asc or desc")
    descending = direction == "desc" if separator else field.is_number
    # The oldest entry has the largest age and the smallest time.
    return SortOrder(field.name, descending != (key == "age"))


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns of a list such as `state,size,path`.

    Raises:
        UsageError: a name is not a field, or there are no names.
    """
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    unknown = [name for name in names if find_field(name) is None]
    if unknown or not names:
        what = f"unknown column {unknown[0]!r}" if unknown else "no columns named"
        raise UsageError(what, f"choose from {', '.join([*FIELDS, *ALIASES])}")
    return names


def check_limit(limit: int | None) -> None:
    """Reject a negative limit.

    Raises:
        UsageError: it is negative.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"invalid limit {limit}", "use 0 or more")


def select(
    entries: Sequence[Entry],
    order: SortOrder,
    *,
    chosen: EntryFilter = EntryFilter(),  # noqa: B008  immutable
    now: float = 0.0,
    failed: bool = False,
    limit: int | None = None,
) -> tuple[Entry, ...]:
    """Return sorted entries that match a filter, at most `limit`.

    Raises:
        UsageError: the limit is negative.
    """
    check_limit(limit)
    wanted = {State.FAILED, State.INTERRUPTED}
    rows = [
        entry for entry in entries if (not failed or entry.state in wanted) and chosen.matches(entry, now)
    ]
    rows.sort(key=lambda entry: entry.path)
    rows.sort(key=FIELDS[order.key].stored, reverse=order.descending)
    return tuple(rows[:limit])


def format_listing(
    scan: Scan,
    entries: Sequence[Entry],
    now: float,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    width: int | None = None,
) -> str:
    """Return the table of selected entries, and a line with their number, total size and root.

    Args:
        scan: the content of the root.
        entries: the selected entries, in order.
        now: Unix seconds.
        columns: names of the fields to show.
        width: of the terminal; None for lines of any length.
    """
    fields = [field for name in columns if (field := find_field(name)) is not None]
    rows = [[field.format(entry, now) for field in fields] for entry in entries]
    align = "".join("<" if field.kind in {FieldKind.WORD, FieldKind.TEXT} else ">" for field in fields)
    head = [name.upper() for name in columns]
    lines = [table(head, rows, align, width=width, optional=_spare(columns))] if rows else []
    if "note" not in columns:
        notes = [f"{entry.module}: {printable(entry.note)}" for entry in entries if entry.note]
        lines += [wrap_field(note, width) for note in notes]
    if is_remote(scan.root) and "used" in columns and entries:
        lines.append(LAST_USE_NOTE)
    total = sum(entry.size_bytes for entry in entries)
    number = plural(len(entries), "entry", "entries")
    shown = f"{number}, {format_size_both(total)} in {scan.root}"
    lines.append("; ".join([shown, *skipped_notes(scan.skipped, scan.unread)]))
    return "\n".join(lines)


def _spare(columns: Sequence[str]) -> list[int]:
    """Return the columns to drop on a narrow terminal, in this order; of explicit columns, the last one first."""
    if columns == DEFAULT_COLUMNS:
        return [columns.index(name) for name in _SPARE_COLUMNS]
    return list(range(len(columns) - 1, 0, -1))


def format_registry(scan: Scan, width: int | None = None) -> str:
    """Return the table of optimum's registry records."""
    rows = [
        (
            record.model or "-",
            record.kind,
            record.arch or "-",
            record.optimum or "-",
            record.compiler,
            display_path(record.path, scan.root, width),
        )
        for record in scan.registry
    ]
    head = ("MODEL", "KIND", "ARCH", "OPTIMUM", "COMPILER", "PATH")
    lines = [table(head, rows, "<<<<<<", width=width, optional=(4, 3, 2, 1))] if rows else []
    lines.append(f"{plural(len(rows), 'registry record', 'registry records')} in {scan.root}")
    return "\n".join(lines)


def registry_json(scan: Scan) -> list[dict[str, str]]:
    """Return the JSON form of `format_registry`."""
    return [asdict(record) for record in scan.registry]


def skipped_notes(skipped: int, unread: int) -> list[str]:
    """Return notes on names of no known layout and on unreadable directories."""
    words = [f"{plural(skipped, 'name', 'names')} of another layout skipped"] if skipped else []
    if unread:
        words.append(f"{plural(unread, 'directory', 'directories')} cannot be read")
    return words


def list_entries(
    location: Location,
    order: SortOrder,
    chosen: EntryFilter,
    *,
    now: float,
    failed: bool = False,
    limit: int | None = None,
    details: bool = True,
    on_listed: Callable[[int], None] | None = None,
    on_read: Callable[[int, int], None] | None = None,
) -> tuple[Scan, tuple[Entry, ...]]:
    """Return the content of a root and the entries to show.

    Args:
        location: the root.
        order: the sort order.
        chosen: which to show.
        now: Unix seconds.
        failed: only failed and interrupted ones.
        limit: maximum number of entries.
        details: read flags and names even where neither filter nor order needs them.
        on_listed: called periodically with the number of objects listed in a bucket.
        on_read: called periodically with the number of entries read, and of all.

    Raises:
        NotACacheError: the root is not a cache.
        UsageError: the limit is negative.
    """
    check_limit(limit)
    if limit is not None and not location.is_remote and not chosen.conditions and not failed:
        found = _read_indexed(location.root, order, limit)
        if found is not None:
            return found, select(found.entries, order, limit=limit)
    by_details = chosen.needs_details or order.needs_details
    all_details = by_details or (details and limit is None)
    found = _scan(location, details=all_details, on_listed=on_listed, on_read=on_read)
    rows = select(found.entries, order, chosen=chosen, now=now, failed=failed, limit=limit)
    if all_details or not details:
        return found, rows
    fresh = (read_entry(location.root, entry.path) for entry in rows)
    return found, tuple(entry for entry in fresh if entry is not None)


def _scan(
    location: Location,
    *,
    details: bool,
    on_listed: Callable[[int], None] | None,
    on_read: Callable[[int, int], None] | None,
) -> Scan:
    started_ns = time.time_ns()
    walked = walk(location.root, on_listed)
    stamps = None if location.is_remote else stamp_directories(walked.listed)
    found = scan_walk(walked, details=details, on_read=on_read)
    check_root_exists(location, found)
    # An index would hide what cannot be read.
    if stamps is not None and not found.unread and len(found.entries) >= MIN_ENTRIES:
        write_index(location.root, found.entries, found.skipped, stamps, started_ns)
    return found


def _read_indexed(root: str, order: SortOrder, limit: int) -> Scan | None:
    """Return a scan that includes the first entries of an order, None without a valid index."""
    candidates = read_candidates(root, order.key, limit, descending=order.descending)
    if candidates is None:
        return None
    # An entry that was used since the index was made may come first now.
    used = {event.module for event in Events(root).read(candidates.made_unix_s)}
    if not used <= {os.path.basename(path) for path in candidates.paths}:
        return None
    reader = EntryReader(root)
    places = [parse_entry_path(root, path) for path in candidates.paths]
    entries = [reader.read(place) for place in places if place is not None]
    found = tuple(entry for entry in entries if entry is not None)
    return (
        Scan(root, exists=True, entries=found, skipped=candidates.skipped)
        if len(found) == len(places)
        else None
    )


@dataclass(frozen=True, slots=True)
class Candidates:
    """Paths that include the first entries of a listing, and when the index was made (Unix seconds)."""

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
        paths.make_private(os.path.dirname(path))
        write_atomic(path, json.dumps(content).encode(), mode=0o600, sync=False)


def read_candidates(root: str, key: str, limit: int, *, descending: bool) -> Candidates | None:
    """Return paths that include the first entries of an order, None without a valid index for it.

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
            stored = load_json(file.read())
        stamps = stored["directories"]
        is_valid = (stored["format"], stored["root"]) == (_FORMAT, root)
        if not is_valid or stamp_directories(str(stamp[0]) for stamp in stamps) != stamps:
            return None
        first = stored["first"][_order_name(key, descending)]
        return Candidates(
            tuple(str(item) for item in (*first[:limit], *stored["unfinished"])),
            int(stored["skipped"]),
            to_float(stored["made_unix_s"]),
        )
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, IndexError):
        remove_quietly(path)
        return None


def _order_name(key: str, descending: bool) -> str:
    return f"{key}:{'desc' if descending else 'asc'}"
