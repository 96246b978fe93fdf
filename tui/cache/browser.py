"""State of the cache browser: rows of the tree, cursor, filter, and entries marked for deletion."""

from __future__ import annotations

import glob
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.fields import EntryFilter, parse_filters
from neurontools.cache.listing import parse_order, select
from neurontools.cache.location import is_network_root
from neurontools.cache.locks import is_in_use
from neurontools.cache.pruning.prune import prepare_pruning, scan_only
from neurontools.cache.pruning.rules import PruneRules, reason_to_spare
from neurontools.tui.widgets.table_lines import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.listing import SortOrder
    from neurontools.cache.pruning.prune import Pruning

RowKey = tuple[str, ...]
Refused = list[tuple["Entry", str]]
"""Entries that cannot be marked for deletion, with the reasons."""

ORDERS = tuple(parse_order(key) for key in ("size", "used", "hits", "made"))
"""The sort orders of the browser."""

_TITLES: dict[str, Callable[[Entry], str]] = {
    "compiler": lambda entry: entry.compiler or "(unknown compiler)",
    "network": lambda entry: entry.name or "(no name)",
    "state": lambda entry: entry.state.value,
    "flags": lambda entry: " ".join(entry.flags) or "(no flags)",
    "layout": lambda entry: entry.layout.value,
}
LEVELS = (
    ("compiler", "network"),
    ("network",),
    ("state", "compiler"),
    ("flags",),
    ("layout", "compiler"),
    (),
)
"""The groupings of the browser in their order, outermost level first; the last is a plain list."""


class DeletionMarks(dict[str, "Entry"]):
    """The entries of a root that are marked for deletion, by their paths."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._root = root
        self._has_network = is_network_root(root)

    @property
    def size_bytes(self) -> int:
        """Size of the marked entries on disk."""
        return sum(entry.size_bytes for entry in self.values())

    def mark(self, entries: Iterable[Entry]) -> Refused:
        """Mark entries; return those that must be kept."""
        reasons = [(entry, self._reason_against(entry)) for entry in entries]
        self.update({entry.path: entry for entry, reason in reasons if not reason})
        return [(entry, reason) for entry, reason in reasons if reason]

    def follow(self, entries: Iterable[Entry]) -> None:
        """Update the marked entries after a scan; entries that are gone or must be kept are unmarked."""
        kept = [entry for entry in entries if entry.path in self]
        self.clear()
        self.mark(kept)

    def _reason_against(self, entry: Entry) -> str:
        reason = reason_to_spare(entry, PruneRules(), time.time(), network=self._has_network)
        return reason or ("in use" if is_in_use(entry.path) else "")

    def removal(self) -> Pruning:
        """Return the removal of the marked entries; every entry is checked again when it is carried out."""
        places = [entry.place for entry in self.values()]
        return prepare_pruning(scan_only(self._root, places), PruneRules(named=frozenset(self)))


@dataclass(frozen=True, slots=True)
class BrowserRow:
    """A visible line of the tree: an entry, or a group (without `entry`). `key` is unique in the tree."""

    key: RowKey
    title: str
    size_bytes: int
    entries: tuple[Entry, ...]
    entry: Entry | None = None
    is_open: bool = False


def tree_rows(
    entries: Iterable[Entry],
    levels: Sequence[str],
    order: SortOrder,
    closed: frozenset[RowKey] = frozenset(),
    above: RowKey = (),
) -> Iterator[BrowserRow]:
    """Yield the lines of the tree: the largest group first if entries are sorted by size, else ordered by title.

    Args:
        entries: of one group, or all, in order.
        levels: the groupings, outermost first; without any there are no groups.
        order: of the entries.
        closed: keys of the groups whose content is hidden.
        above: key of the group they are in.
    """
    if not levels:
        for entry in entries:
            yield BrowserRow((*above, entry.path), entry.module, entry.size_bytes, (entry,), entry)
        return
    members: dict[str, list[Entry]] = {}
    for entry in entries:
        members.setdefault(_TITLES[levels[0]](entry), []).append(entry)
    groups = [
        BrowserRow(
            key := (*above, title),
            title,
            sum(entry.size_bytes for entry in own),
            tuple(own),
            is_open=key not in closed,
        )
        for title, own in sorted(members.items())
    ]
    if order.key == "size":
        groups.sort(key=lambda group: group.size_bytes, reverse=order.descending)
    for group in groups:
        yield group
        if group.is_open:
            yield from tree_rows(group.entries, levels[1:], order, closed, group.key)


class Browser:
    """The state of a browser of a root; nothing is read yet."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.marks = DeletionMarks(root)
        self.order = ORDERS[0]
        self.levels: tuple[str, ...] = LEVELS[0]
        self.filter_text = ""
        self.rows: tuple[BrowserRow, ...] = ()
        self.entries: tuple[Entry, ...] = ()
        self.shown: tuple[Entry, ...] = ()
        self.shown_bytes = 0
        self.cursor = Cursor()
        self._filter = EntryFilter()
        self._closed: frozenset[RowKey] = frozenset()

    @property
    def current(self) -> BrowserRow | None:
        """The row under the cursor, None where nothing is shown."""
        return self.rows[self.cursor.row] if self.rows else None

    @property
    def chosen(self) -> tuple[Entry, ...]:
        """The entry under the cursor, or all entries of the group."""
        return self.current.entries if self.current else ()

    def load(self, entries: tuple[Entry, ...]) -> None:
        """Replace the entries; the cursor stays on its row if that still exists."""
        self.entries = entries
        self.marks.follow(entries)
        self._rebuild()

    def set_filter(self, text: str) -> None:
        """Show only entries that match conditions.

        Raises:
            FilterError: the filter is invalid; the shown entries do not change.
        """
        self._filter = parse_filters([text] if text.strip() else [])
        self.filter_text = text
        self._rebuild()

    def next_order(self) -> None:
        """Sort by the next key."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        self._rebuild()

    def next_grouping(self) -> None:
        """Switch to the next grouping with all groups open."""
        self.levels = LEVELS[(LEVELS.index(self.levels) + 1) % len(LEVELS)]
        self._closed = frozenset()
        self._rebuild()

    def move(self, steps: int) -> None:
        """Move the cursor within the rows."""
        self.cursor.move(steps, len(self.rows))

    def open(self) -> None:
        """Open the group under the cursor; if it is open, move to its first row."""
        if self.current and not self.current.entry:
            if self.current.is_open:
                self.move(1)
            else:
                self.toggle()

    def close(self) -> None:
        """Close the group under the cursor, or move to the group of the row."""
        if self.current and self.current.is_open:
            self.toggle()
        elif self.current:
            self._go_to(self.current.key[:-1])

    def toggle(self) -> None:
        """Open or close the group under the cursor."""
        if self.current and not self.current.entry:
            self._closed ^= {self.current.key}
            self._rebuild()

    def toggle_mark(self) -> Refused:
        """Mark the rows under the cursor, or unmark them if all are marked; return the entries that must be kept."""
        entries = self.chosen
        if not all(entry.path in self.marks for entry in entries):
            return self.marks.mark(entries)
        for entry in entries:
            del self.marks[entry.path]
        return []

    def _rebuild(self) -> None:
        key = self.current.key if self.current else ()
        self.shown = select(self.entries, self.order, chosen=self._filter, now=time.time())
        self.shown_bytes = sum(entry.size_bytes for entry in self.shown)
        self.rows = tuple(tree_rows(self.shown, self.levels, self.order, self._closed))
        self._go_to(key)

    def _go_to(self, key: RowKey) -> None:
        row = next((number for number, row in enumerate(self.rows) if row.key == key), self.cursor.row)
        self.cursor.move(row - self.cursor.row, len(self.rows))


def change_stamp(root: str) -> int:
    """Return a number that changes when an entry is added, removed or changed.

    It costs one stat for each name in the root and one level below; unreadable directories count as empty.
    """
    base = glob.escape(root)
    times_ns = []
    for path in (root, *glob.glob(f"{base}/*"), *glob.glob(f"{base}/*/*")):
        with suppress(OSError):
            times_ns.append((path, os.lstat(path).st_mtime_ns))
    return hash(tuple(times_ns))
