"""Which entries a command line means: those that it names, those that fulfil its filters, or both."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.cache.entries import scan_location
from neurontools.cache.entry_reader import EntryReader
from neurontools.cache.filters import parse_filters
from neurontools.cache.naming import NoSuchEntryError, find_places
from neurontools.cache.walk import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.location import Location


def chosen_places(location: Location, names: Sequence[str], conditions: Sequence[str]) -> tuple[Place, ...]:
    """Return the places of the entries that are meant; without names, of all that fulfil the conditions.

    Args:
        location: which root.
        names: paths, modules, or starts of them.
        conditions: as `--filter` takes them; all must hold.

    Raises:
        NoSuchEntryError: a name fits no entry or several, or the conditions fit none.
        UsageError: a condition does not parse.
        NotACacheError: it is no cache.
    """
    chosen = parse_filters(conditions)
    if names:
        entries = _named(location.root, names)
    else:
        entries = scan_location(location, details=chosen.needs_details).entries
    now = time.time()
    places = tuple(
        Place(entry.path, entry.generation, entry.compiler, entry.module)
        for entry in entries
        if chosen.matches(entry, now)
    )
    if not places:
        raise NoSuchEntryError(
            f"no entry in {location.root} fulfils the conditions", "'neuron-cache ls' lists what is there"
        )
    return places


def _named(root: str, names: Sequence[str]) -> tuple[Entry, ...]:
    reader = EntryReader(root)
    read = (reader.read(place) for place in find_places(root, names))
    return tuple(entry for entry in read if entry is not None)
