"""Selecting, sorting and formatting entries for `neuron-cache ls`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from neurontools.base.filters import TEXT, WORD
from neurontools.base.text import plural, printable, table, wrap_field
from neurontools.base.units import format_size_both
from neurontools.cache.entries import Scan, check_root_exists, read_entry, scan_walk
from neurontools.cache.entry_files import State
from neurontools.cache.fields import ALIASES, FIELDS, EntryFilter, find_field
from neurontools.cache.layouts import display_path
from neurontools.cache.location import LAST_USE_NOTE, is_remote
from neurontools.cache.walk import walk
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.location import Location

DEFAULT_COLUMNS = ("state", "size", "age", "used", "hits", "compiler", "flags", "name", "module")
_SPARE_COLUMNS = ("flags", "compiler", "hits", "age", "name")


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The field that entries are sorted by, and the direction."""

    key: str
    descending: bool


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


def select(
    entries: Sequence[Entry],
    order: SortOrder,
    *,
    chosen: EntryFilter = EntryFilter(),  # noqa: B008  immutable
    now: float = 0.0,
    failed: bool = False,
    limit: int | None = None,
) -> tuple[Entry, ...]:
    """Return sorted entries that match a filter, at most `limit`."""
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
    align = "".join("<" if field.kind in {WORD, TEXT} else ">" for field in fields)
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
    """
    all_details = chosen.needs_details or FIELDS[order.key].details or (details and limit is None)
    content = scan_walk(walk(location.root, on_listed), details=all_details, on_read=on_read)
    check_root_exists(location, content)
    rows = select(content.entries, order, chosen=chosen, now=now, failed=failed, limit=limit)
    if all_details or not details:
        return content, rows
    fresh = (read_entry(location.root, entry.path) for entry in rows)
    return content, tuple(entry for entry in fresh if entry is not None)
