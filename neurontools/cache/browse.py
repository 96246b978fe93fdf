"""What `neuron-cache ls` lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.cache.entries import Scan, read_entry, scan_location
from neurontools.cache.listing import Order, check_limit, select

if TYPE_CHECKING:
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
) -> tuple[Scan, tuple[Entry, ...]]:
    """Return a root's content and the entries to show, read fresh and in full.

    Args:
        location: which root.
        order: sorts them.
        chosen: which to show.
        now: Unix seconds.
        failed: only failed and interrupted ones.
        limit: so many at most.

    Raises:
        NotACacheError: it is no cache.
        UsageError: the limit is negative.
    """
    check_limit(limit)
    details = limit is None or chosen.needs_details or order.needs_details
    found = scan_location(location, details=details)
    rows = select(found.entries, order, chosen=chosen, now=now, failed=failed, limit=limit)
    if details:
        return found, rows
    fresh = (read_entry(location.root, entry.path) for entry in rows)
    return found, tuple(entry for entry in fresh if entry is not None)
