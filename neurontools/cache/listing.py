"""Choosing, ordering and showing entries for `neuron-cache ls`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.cache.fields import ALIASES, FIELDS, Kind, field_named
from neurontools.cache.filters import Filter
from neurontools.cache.quantities import format_size_both
from neurontools.cache.remote.url import LAST_USE_NOTE, is_remote
from neurontools.cache.states import State
from neurontools.cache.tables import below, counted, plain, table, wrapped
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.entries import Entry, Scan

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
    "layout": (lambda entry: entry.generation.value, False),
}


@dataclass(frozen=True, slots=True)
class Order:
    """A sort key and its direction."""

    key: str
    descending: bool

    @property
    def needs_details(self) -> bool:
        """Whether the key is something that only the files' content tells."""
        return self.key in {"name", "flags"}


def parse_order(text: str) -> Order:
    """Return the order that `KEY`, `KEY:asc` or `KEY:desc` asks for; numbers come largest first by themselves.

    Raises:
        UsageError: no such key or direction.
    """
    key, separator, direction = text.partition(":")
    if key not in _KEYS:
        raise UsageError(f"cannot sort by {key!r}", f"choose one of {', '.join(_KEYS)}")
    if separator and direction not in {"asc", "desc"}:
        raise UsageError(f"no sort direction {direction!r}", "choose asc or desc")
    return Order(key, direction == "desc" if separator else _KEYS[key][1])


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns of a list such as `state,size,path`.

    Raises:
        UsageError: one is no field, or there is none.
    """
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    unknown = [name for name in names if field_named(name) is None]
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
    order: Order,
    *,
    chosen: Filter = Filter(),  # noqa: B008  immutable
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


def listing_text(
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
    fields = [field for name in columns if (field := field_named(name)) is not None]
    rows = [[field.shown(entry, now) for field in fields] for entry in entries]
    align = "".join("<" if field.kind in {Kind.WORD, Kind.TEXT} else ">" for field in fields)
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
    lines.append("; ".join([shown, *left_out_words(scan.skipped, scan.unread)]))
    return "\n".join(lines)


def _spare(columns: Sequence[str]) -> list[int]:
    """Return which columns a narrow terminal does without, the first one first: of those that were asked for, the last."""
    if columns == DEFAULT_COLUMNS:
        return [columns.index(name) for name in _SPARE_COLUMNS]
    return list(range(len(columns) - 1, 0, -1))


def registry_text(scan: Scan, width: int | None = None) -> str:
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
        "layout": entry.generation.value,
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


def left_out_words(skipped: int, unread: int) -> list[str]:
    """Return words on names that no layout knows, and on what cannot be read; none for none."""
    words = [f"{counted(skipped, 'name', 'names')} of another layout skipped"] if skipped else []
    if unread:
        words.append(f"{counted(unread, 'directory', 'directories')} cannot be read")
    return words
