"""A browser of one cache: what it shows, where it stands, what is marked. Reading and deleting happen elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.cache.browser.marks import Marks
from neurontools.cache.browser.tree import LEVELS, entry_rows, make_groups, visible_rows
from neurontools.cache.filters import Filter, parse_filters
from neurontools.cache.listing import parse_order, select

if TYPE_CHECKING:
    from neurontools.cache.browser.marks import Refusal
    from neurontools.cache.browser.tree import Grouping, Key, Row
    from neurontools.cache.entry_reader import Entry
    from neurontools.cache.listing import Order

ORDERS = tuple(parse_order(key) for key in ("size", "used", "hits", "made"))
"""The orders that a browser offers: largest, last used, most used, youngest first."""


class Browser:
    """The state of a browser.

    Args:
        root: of the cache.
        network: it lies on a network file system.
    """

    def __init__(self, root: str, *, network: bool = False) -> None:
        self.root = root
        self.marks = Marks(root, network=network)
        self.order = ORDERS[0]
        self.levels: tuple[Grouping, ...] = LEVELS[0]
        self.filter_text = ""
        self.rows: tuple[Row, ...] = ()
        self.entries: tuple[Entry, ...] = ()
        self.shown: tuple[Entry, ...] = ()
        self.cursor = 0
        self._filter = Filter()
        self._closed: frozenset[Key] = frozenset()

    @property
    def current(self) -> Row | None:
        """The row under the cursor, None where nothing is shown."""
        return self.rows[self.cursor] if self.rows else None

    @property
    def shown_bytes(self) -> int:
        """The size of what is shown."""
        return sum(entry.size_bytes for entry in self.shown)

    def load(self, entries: tuple[Entry, ...]) -> None:
        """Show other entries; the cursor stays on its row where that is still there."""
        self.entries = entries
        self.marks.follow(entries)
        self._rebuild()

    def set_filter(self, text: str) -> None:
        """Show only what fulfils conditions.

        Raises:
            FilterSyntaxError: they cannot be read; what was shown stays.
        """
        self._filter = parse_filters([text] if text.strip() else [])
        self.filter_text = text
        self._rebuild()

    def next_order(self) -> Order:
        """Sort by the next key."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        self._rebuild()
        return self.order

    def next_grouping(self) -> tuple[Grouping, ...]:
        """Group by the next way; all groups are open then."""
        self.levels = LEVELS[(LEVELS.index(self.levels) + 1) % len(LEVELS)]
        self._closed = frozenset()
        self._rebuild()
        return self.levels

    def move(self, steps: int) -> None:
        """Move the cursor, as far as there are rows."""
        self.cursor = max(0, min(self.cursor + steps, len(self.rows) - 1))

    def go_to(self, position: int) -> bool:
        """Put the cursor on a row; return whether it was there."""
        before = self.cursor
        self.cursor = max(0, min(position, len(self.rows) - 1))
        return self.cursor == before

    def open(self) -> None:
        """Open the group under the cursor; in an open one, go to its first row."""
        row = self.current
        if row is None or row.group is None:
            return
        if row.is_open:
            self.move(1)
        else:
            self._closed -= {row.key}
            self._rebuild()

    def close(self) -> None:
        """Close the group under the cursor; elsewhere go to the group that the row is in."""
        row = self.current
        if row is None:
            return
        if row.group is not None and row.is_open:
            self._closed |= {row.key}
            self._rebuild()
            return
        above = row.key[:-1]
        self.cursor = next(
            (position for position, other in enumerate(self.rows) if other.key == above), self.cursor
        )

    def toggle(self) -> None:
        """Open a closed group, close an open one."""
        row = self.current
        if row is not None and row.group is not None:
            self._closed ^= {row.key}
            self._rebuild()

    def chosen(self) -> tuple[Entry, ...]:
        """Return the entry under the cursor, or all of the group there."""
        row = self.current
        if row is None:
            return ()
        return (row.entry,) if row.entry is not None else row.group.entries if row.group is not None else ()

    def toggle_mark(self) -> tuple[Refusal, ...]:
        """Mark what is under the cursor, or unmark it when all of it is marked; return what must stay."""
        entries = self.chosen()
        if entries and {entry.path for entry in entries} <= self.marks.paths:
            self.marks.unmark(entries)
            return ()
        return self.marks.mark(entries)

    def mark_shown(self) -> tuple[Refusal, ...]:
        """Mark all that is shown; return what must stay."""
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
