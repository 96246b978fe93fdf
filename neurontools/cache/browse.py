"""What `neuron-cache ls` lists: all entries, or the first of a big root by way of its index."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.cache import index
from neurontools.cache.entries import Scan, must_exist, read_entry, scan_places
from neurontools.cache.entry_reader import EntryReader
from neurontools.cache.events import Events
from neurontools.cache.listing import Order, check_limit, select
from neurontools.cache.walk import walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.entries import Entry
    from neurontools.cache.filters import Filter
    from neurontools.cache.location import Location


def list_entries(
    location: Location,
    order: Order,
    chosen: Filter,
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
    found = scan_places(walked, details=details, looked=looked)
    must_exist(location, found)
    # An index could not tell of what cannot be read.
    if as_listed is not None and not found.unread and len(found.entries) >= index.FEWEST_ENTRIES:
        index.write_index(location.root, found.entries, found.skipped, as_listed, started_ns)
    return found


def _by_index(root: str, order: Order, limit: int) -> Scan | None:
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
