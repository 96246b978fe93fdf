"""Selecting, sorting and formatting entries for `neuron-cache ls`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.cache import index
from neurontools.cache.entries import EntryReader, Scan, check_root_exists, read_entry, scan_walk
from neurontools.cache.entry_files import State
from neurontools.cache.events import Events
from neurontools.cache.fields import ALIASES, FIELDS, FieldKind, find_field
from neurontools.cache.filters import EntryFilter
from neurontools.cache.quantities import format_size_both
from neurontools.cache.remote.url import LAST_USE_NOTE, is_remote
from neurontools.cache.tables import below, counted, plain, table, wrapped
from neurontools.cache.walk import walk
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.location import Location


DEFAULT_COLUMNS = ("state", "size", "age", "used", "hits", "compiler", "flags", "name", "module")
_SPARE_COLUMNS = ("flags", "compiler", "hits", "age", "name")

_KEYS: dict[str, tuple[Callable[[Entry], Any], bool]] = {
    "used": (lambda entry: entry.used_unix_s, True),
    "made": (lambda entry: entry.made_unix_s, True),
    "age": (lambda entry: -entry.made_unix_s, True),
    "size": (lambda entry: entry.size_bytes, True),
    "hits": (lambda entry: entry.hits, True),
    "state": (lambda entry: entry.state.value, False),
    "name": (lambda entry: entry.name, False),
    "compiler": (lambda entry: entry.compiler, False),
    "flags": (lambda entry: entry.flags, False),
    "module": (lambda entry: entry.module, False),
    "path": (lambda entry: entry.path, False),
    "layout": (lambda entry: entry.layout.value, False),
}


@dataclass(frozen=True, slots=True)
class SortOrder:
    """A sort key and its direction."""

    key: str
    descending: bool

    @property
    def needs_details(self) -> bool:
        """Whether the key is something that only the files' content tells."""
        return self.key in {"name", "flags"}


def parse_order(text: str) -> SortOrder:
    """Return the order that `KEY`, `KEY:asc` or `KEY:desc` asks for; numbers come largest first by themselves.

    Raises:
        UsageError: no such key or direction.
    """
    key, separator, direction = text.partition(":")
    if key not in _KEYS:
        raise UsageError(f"cannot sort by {key!r}", f"choose one of {', '.join(_KEYS)}")
    if separator and direction not in {"asc", "desc"}:
        raise UsageError(f"no sort direction {direction!r}", "choose asc or desc")
    return SortOrder(key, direction == "desc" if separator else _KEYS[key][1])


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns of a list such as `state,size,path`.

    Raises:
        UsageError: one is no field, or there is none.
    """
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    unknown = [name for name in names if find_field(name) is None]
    if unknown or not names:
        what = f"there is no column {unknown[0]!r}" if unknown else "no column is named"
        raise UsageError(what, f"choose from {', '.join([*FIELDS, *ALIASES])}")
    return names


def check_limit(limit: int | None) -> None:
    """Refuse a negative limit.

    Raises:
        UsageError: it is negative.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"a limit of {limit} makes no sense", "give 0 or more")


def select(
    entries: Sequence[Entry],
    order: SortOrder,
    *,
    chosen: EntryFilter = EntryFilter(),  # noqa: B008  immutable
    now: float = 0.0,
    failed: bool = False,
    limit: int | None = None,
) -> tuple[Entry, ...]:
    """Return entries in order: at most `limit`, only those of a filter, only failed and interrupted ones when asked.

    Raises:
        UsageError: the limit is negative.
    """
    check_limit(limit)
    wanted = {State.FAILED, State.INTERRUPTED}
    rows = [
        entry for entry in entries if (not failed or entry.state in wanted) and chosen.matches(entry, now)
    ]
    rows.sort(key=lambda entry: entry.path)
    rows.sort(key=_KEYS[order.key][0], reverse=order.descending)
    return tuple(rows[:limit])


def format_listing(
    scan: Scan,
    entries: Sequence[Entry],
    now: float,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    width: int | None = None,
) -> str:
    """Return the table of a scan's chosen entries, and a line with their number, their size and the root.

    Args:
        scan: what they are of.
        entries: the chosen ones, in order.
        now: Unix seconds.
        columns: what is shown of each.
        width: the terminal's columns; None where lines may have any length.
    """
    fields = [field for name in columns if (field := find_field(name)) is not None]
    rows = [[field.shown(entry, now) for field in fields] for entry in entries]
    align = "".join("<" if field.kind in {FieldKind.WORD, FieldKind.TEXT} else ">" for field in fields)
    head = [name.upper() for name in columns]
    lines = [table(head, rows, align, width=width, spare=_spare(columns))] if rows else []
    if "note" not in columns:
        notes = [f"{entry.module}: {plain(entry.note)}" for entry in entries if entry.note]
        lines += [wrapped(note, width) for note in notes]
    if is_remote(scan.root) and "used" in columns and entries:
        lines.append(LAST_USE_NOTE)
    total = sum(entry.size_bytes for entry in entries)
    number = counted(len(entries), "entry", "entries")
    shown = f"{number}, {format_size_both(total)} in {scan.root}"
    lines.append("; ".join([shown, *skipped_notes(scan.skipped, scan.unread)]))
    return "\n".join(lines)


def _spare(columns: Sequence[str]) -> list[int]:
    """Return which columns a narrow terminal does without, the first one first: of those that were asked for, the last."""
    if columns == DEFAULT_COLUMNS:
        return [columns.index(name) for name in _SPARE_COLUMNS]
    return list(range(len(columns) - 1, 0, -1))


def format_registry(scan: Scan, width: int | None = None) -> str:
    """Return the table of optimum's registry records, no wider than a terminal's columns."""
    rows = [
        (
            record.model or "-",
            record.kind,
            record.arch or "-",
            record.optimum or "-",
            record.compiler,
            below(record.path, scan.root, width),
        )
        for record in scan.registry
    ]
    head = ("MODEL", "KIND", "ARCH", "OPTIMUM", "COMPILER", "PATH")
    lines = [table(head, rows, "<<<<<<", width=width, spare=(4, 3, 2, 1))] if rows else []
    lines.append(f"{counted(len(rows), 'registry record', 'registry records')} in {scan.root}")
    return "\n".join(lines)


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry's JSON form: bytes and Unix seconds."""
    return {
        "path": entry.path,
        "module": entry.module,
        "layout": entry.layout.value,
        "compiler": entry.compiler,
        "state": entry.state.value,
        "size_bytes": entry.size_bytes,
        "made_unix_s": entry.made_unix_s,
        "used_unix_s": entry.used_unix_s,
        "hits": entry.hits,
        "flags": list(entry.flags),
        "name": entry.name,
        "pinned": entry.pinned,
        "tags": list(entry.tags),
        "ours": entry.ours,
        "note": entry.note,
    }


def registry_json(scan: Scan) -> list[dict[str, str]]:
    """Return the JSON form of `registry_text`."""
    return [
        {
            "path": record.path,
            "model": record.model,
            "kind": record.kind,
            "arch": record.arch,
            "optimum": record.optimum,
            "compiler": record.compiler,
        }
        for record in scan.registry
    ]


def skipped_notes(skipped: int, unread: int) -> list[str]:
    """Return words on names that no layout knows, and on what cannot be read; none for none."""
    words = [f"{counted(skipped, 'name', 'names')} of another layout skipped"] if skipped else []
    if unread:
        words.append(f"{counted(unread, 'directory', 'directories')} cannot be read")
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
    listed: Callable[[int], None] | None = None,
    looked: Callable[[int, int], None] | None = None,
) -> tuple[Scan, tuple[Entry, ...]]:
    """Return a root's content and the entries to show, read fresh and in full.

    Args:
        location: which root.
        order: sorts them.
        chosen: which to show.
        now: Unix seconds.
        failed: only failed and interrupted ones.
        limit: so many at most.
        details: flags and names are wanted even where nothing is chosen or sorted by them.
        listed: is told now and then how many objects of a bucket are listed.
        looked: is told now and then at how many of how many entries was looked.

    Raises:
        NotACacheError: it is no cache.
        UsageError: the limit is negative.
    """
    check_limit(limit)
    if limit is not None and not location.is_remote and not chosen.conditions and not failed:
        found = _by_index(location.root, order, limit)
        if found is not None:
            return found, select(found.entries, order, limit=limit)
    by_details = chosen.needs_details or order.needs_details
    all_details = by_details or (details and limit is None)
    found = _scan(location, details=all_details, listed=listed, looked=looked)
    rows = select(found.entries, order, chosen=chosen, now=now, failed=failed, limit=limit)
    if all_details or not details:
        return found, rows
    fresh = (read_entry(location.root, entry.path) for entry in rows)
    return found, tuple(entry for entry in fresh if entry is not None)


def _scan(
    location: Location,
    *,
    details: bool,
    listed: Callable[[int], None] | None,
    looked: Callable[[int, int], None] | None,
) -> Scan:
    started_ns = time.time_ns()
    walked = walk(location.root, listed)
    as_listed = None if location.is_remote else index.note_listed(walked.listed)
    found = scan_walk(walked, details=details, looked=looked)
    check_root_exists(location, found)
    # An index could not tell of what cannot be read.
    if as_listed is not None and not found.unread and len(found.entries) >= index.FEWEST_ENTRIES:
        index.write_index(location.root, found.entries, found.skipped, as_listed, started_ns)
    return found


def _by_index(root: str, order: SortOrder, limit: int) -> Scan | None:
    """Return the first entries of an order, None when the index cannot tell."""
    first = index.candidates(root, order.key, limit, descending=order.descending)
    if first is None:
        return None
    places = {place.path: place for place in first.places}
    # What was used since the index was made may stand first now.
    used = {event.module for event in Events(root).read(first.made_unix_s)}
    if not used <= {place.module for place in first.places}:
        return None
    reader = EntryReader(root)
    entries = [reader.read(place) for place in places.values()]
    if None in entries:
        return None
    read = tuple(entry for entry in entries if entry is not None)
    return Scan(root, exists=True, entries=read, skipped=first.skipped)
