"""State of the cache browser: groups, rows, cursor, filter, and entries marked for deletion."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.cache.filters import EntryFilter, parse_filters
from neurontools.cache.listing import parse_order, select
from neurontools.cache.locks import is_in_use
from neurontools.cache.pruning.prune import prepare_pruning, scan_only
from neurontools.cache.pruning.rules import PruneRules, reason_to_spare

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.listing import SortOrder
    from neurontools.cache.pruning.prune import Pruning

RowKey = tuple[str, ...]

ORDERS = tuple(parse_order(key) for key in ("size", "used", "hits", "made"))
"""The sort orders of the browser."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An entry that cannot be marked for deletion, and the reason."""

    entry: Entry
    reason: str


class DeletionMarks:
    """The entries of a root that are marked for deletion.

    Args:
        root: of the cache.
        network: whether the root is on a network file system, where entries in use cannot be detected.
    """

    def __init__(self, root: str, *, network: bool = False) -> None:
        self._root = root
        self._network = network
        self._marked: dict[str, Entry] = {}

    @property
    def paths(self) -> frozenset[str]:
        """Paths of the marked entries."""
        return frozenset(self._marked)

    @property
    def size_bytes(self) -> int:
        """Size of the marked entries on disk."""
        return sum(entry.size_bytes for entry in self._marked.values())

    def __len__(self) -> int:
        """Return the number of marked entries."""
        return len(self._marked)

    def mark(self, entries: Iterable[Entry]) -> tuple[Refusal, ...]:
        """Mark entries; return those that must be kept."""
        refused = []
        for entry in entries:
            reason = self.reason_against(entry)
            if reason:
                refused.append(Refusal(entry, reason))
            else:
                self._marked[entry.path] = entry
        return tuple(refused)

    def unmark(self, entries: Iterable[Entry]) -> None:
        """Unmark entries."""
        for entry in entries:
            self._marked.pop(entry.path, None)

    def clear(self) -> None:
        """Unmark all entries."""
        self._marked.clear()

    def follow(self, entries: Iterable[Entry]) -> None:
        """Update the marked entries after a scan; entries that are gone or must be kept are unmarked."""
        present = {entry.path: entry for entry in entries}
        kept = (present[path] for path in self._marked if path in present)
        self._marked = {entry.path: entry for entry in kept if not self.reason_against(entry)}

    def reason_against(self, entry: Entry) -> str:
        """Return why an entry must be kept, "" if it may be removed."""
        reason = reason_to_spare(entry, PruneRules(), time.time(), network=self._network)
        return reason or ("in use" if is_in_use(entry.path) else "")

    def removal(self) -> Pruning:
        """Return the removal of the marked entries; every entry is checked again when it is carried out."""
        places = [entry.place for entry in self._marked.values()]
        return prepare_pruning(scan_only(self._root, places), PruneRules(named=self.paths))


class Grouping(StrEnum):
    """What the entries of a group have in common."""

    COMPILER = "compiler"
    NAME = "network"
    STATE = "state"
    FLAGS = "flags"
    LAYOUT = "layout"


LEVELS: tuple[tuple[Grouping, ...], ...] = (
    (Grouping.COMPILER, Grouping.NAME),
    (Grouping.NAME,),
    (Grouping.STATE, Grouping.COMPILER),
    (Grouping.FLAGS,),
    (Grouping.LAYOUT, Grouping.COMPILER),
    (),
)
"""The groupings of the browser in their order; the last is a plain list."""


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """Entries with something in common. `key` is unique in the tree; a group of the last level has no groups."""

    key: RowKey
    title: str
    entries: tuple[Entry, ...]
    groups: tuple[EntryGroup, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BrowserRow:
    """A visible line of the tree: a group or an entry. `share` (0..1) is its part of the shown bytes."""

    key: RowKey
    depth: int
    title: str
    size_bytes: int
    share: float
    entry: Entry | None = None
    group: EntryGroup | None = None
    is_open: bool = False


def make_groups(
    entries: Sequence[Entry], levels: Sequence[Grouping], order: SortOrder, above: RowKey = ()
) -> tuple[EntryGroup, ...]:
    """Return entries in groups: the largest group first if entries are sorted by size, else ordered by title.

    Args:
        entries: of one group, or all.
        levels: the groupings, outermost first; without any there are no groups.
        order: of the entries in the innermost groups.
        above: key of the group they are in.
    """
    if not levels:
        return ()
    gathered: dict[str, list[Entry]] = {}
    for entry in entries:
        gathered.setdefault(group_title(entry, levels[0]), []).append(entry)
    groups = [
        EntryGroup(
            key=(*above, title),
            title=title,
            entries=select(own, order),
            groups=make_groups(own, levels[1:], order, (*above, title)),
            size_bytes=sum(entry.size_bytes for entry in own),
        )
        for title, own in gathered.items()
    ]
    groups.sort(key=lambda group: group.title)
    if order.key == "size":
        groups.sort(key=lambda group: group.size_bytes, reverse=order.descending)
    return tuple(groups)


def group_title(entry: Entry, grouping: Grouping) -> str:
    """Return the title of the group that an entry belongs to."""
    match grouping:
        case Grouping.COMPILER:
            return entry.compiler or "(unknown compiler)"
        case Grouping.NAME:
            return entry.name or "(no name)"
        case Grouping.STATE:
            return entry.state.value
        case Grouping.FLAGS:
            return " ".join(entry.flags) or "(no flags)"
        case Grouping.LAYOUT:
            return entry.layout.value


def visible_rows(
    groups: Iterable[EntryGroup], closed: frozenset[RowKey], total_bytes: int
) -> tuple[BrowserRow, ...]:
    """Return the lines of the tree from the top; groups start open.

    Args:
        groups: of the outermost level.
        closed: keys of the groups whose content is hidden.
        total_bytes: the size that shares are relative to.
    """
    rows: list[BrowserRow] = []
    for group in groups:
        is_open = group.key not in closed
        share = group.size_bytes / total_bytes if total_bytes else 0.0
        depth = len(group.key) - 1
        rows.append(
            BrowserRow(group.key, depth, group.title, group.size_bytes, share, group=group, is_open=is_open)
        )
        if is_open and group.groups:
            rows += visible_rows(group.groups, closed, total_bytes)
        elif is_open:
            rows += entry_rows(group.entries, group.key, total_bytes)
    return tuple(rows)


def entry_rows(entries: Iterable[Entry], above: RowKey, total_bytes: int) -> tuple[BrowserRow, ...]:
    """Return the lines of entries without groups."""
    return tuple(
        BrowserRow(
            key=(*above, entry.path),
            depth=len(above),
            title=entry.module,
            size_bytes=entry.size_bytes,
            share=entry.size_bytes / total_bytes if total_bytes else 0.0,
            entry=entry,
        )
        for entry in entries
    )


class Browser:
    """The state of a browser.

    Args:
        root: of the cache.
        network: whether the root is on a network file system.
    """

    def __init__(self, root: str, *, network: bool = False) -> None:
        self.root = root
        self.marks = DeletionMarks(root, network=network)
        self.order = ORDERS[0]
        self.levels: tuple[Grouping, ...] = LEVELS[0]
        self.filter_text = ""
        self.rows: tuple[BrowserRow, ...] = ()
        self.entries: tuple[Entry, ...] = ()
        self.shown: tuple[Entry, ...] = ()
        self.cursor = 0
        self._filter = EntryFilter()
        self._closed: frozenset[RowKey] = frozenset()

    @property
    def current(self) -> BrowserRow | None:
        """The row under the cursor, None where nothing is shown."""
        return self.rows[self.cursor] if self.rows else None

    @property
    def shown_bytes(self) -> int:
        """Total size of the shown entries."""
        return sum(entry.size_bytes for entry in self.shown)

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

    def next_order(self) -> SortOrder:
        """Sort by the next key."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        self._rebuild()
        return self.order

    def next_grouping(self) -> tuple[Grouping, ...]:
        """Switch to the next grouping with all groups open."""
        self.levels = LEVELS[(LEVELS.index(self.levels) + 1) % len(LEVELS)]
        self._closed = frozenset()
        self._rebuild()
        return self.levels

    def move(self, steps: int) -> None:
        """Move the cursor within the rows."""
        self.cursor = max(0, min(self.cursor + steps, len(self.rows) - 1))

    def go_to(self, position: int) -> bool:
        """Move the cursor to a row; return whether it was already there."""
        before = self.cursor
        self.cursor = max(0, min(position, len(self.rows) - 1))
        return self.cursor == before

    def open(self) -> None:
        """Open the group under the cursor; if it is open, move to its first row."""
        row = self.current
        if row is None or row.group is None:
            return
        if row.is_open:
            self.move(1)
        else:
            self._closed -= {row.key}
            self._rebuild()

    def close(self) -> None:
        """Close the group under the cursor, or move to the group of the row."""
        row = self.current
        if row is None:
            return
        if row.group is not None and row.is_open:
            self._closed |= {row.key}
            self._rebuild()
            return
        above = row.key[:-1]
        self.cursor = next(
            (position for position, candidate in enumerate(self.rows) if candidate.key == above), self.cursor
        )

    def toggle(self) -> None:
        """Open or close the group under the cursor."""
        row = self.current
        if row is not None and row.group is not None:
            self._closed ^= {row.key}
            self._rebuild()

    def chosen(self) -> tuple[Entry, ...]:
        """Return the entry under the cursor, or all entries of the group."""
        row = self.current
        if row is None:
            return ()
        return (row.entry,) if row.entry is not None else row.group.entries if row.group is not None else ()

    def toggle_mark(self) -> tuple[Refusal, ...]:
        """Mark what is under the cursor, or unmark it if all of it is marked; return what must be kept."""
        entries = self.chosen()
        if entries and {entry.path for entry in entries} <= self.marks.paths:
            self.marks.unmark(entries)
            return ()
        return self.marks.mark(entries)

    def mark_shown(self) -> tuple[Refusal, ...]:
        """Mark all shown entries; return those that must be kept."""
        return self.marks.mark(self.shown)

    def _rebuild(self) -> None:
        key = self.current.key if self.current is not None else None
        now = time.time()
        self.shown = select(self.entries, self.order, chosen=self._filter, now=now)
        total = self.shown_bytes
        if self.levels:
            groups = make_groups(self.shown, self.levels, self.order)
            self.rows = visible_rows(groups, self._closed, total)
        else:
            self.rows = entry_rows(self.shown, (), total)
        at = next((position for position, row in enumerate(self.rows) if row.key == key), self.cursor)
        self.cursor = max(0, min(at, len(self.rows) - 1))


def change_stamp(root: str) -> int:
    """Return a number that changes when an entry is added, removed or changed.

    It costs one stat for each name in the root and one level below; unreadable directories count as empty.
    """
    parts = [_stamp(root)]
    for name in _names(root):
        path = f"{root}/{name}"
        parts.append(_stamp(path))
        try:
            with os.scandir(path) as listing:
                parts += [item.stat(follow_symlinks=False).st_mtime_ns for item in listing]
        except OSError:
            continue
    return hash(tuple(parts))


def _stamp(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _names(root: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(root) if not name.startswith("."))
    except OSError:
        return []
