"""What is in a cache root. Reading only; unknown names are counted and left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.collector import collector_paused
from neurontools.cache.entry_reader import Entry, EntryReader, details_of
from neurontools.cache.location import ARGUMENT_SOURCE
from neurontools.cache.tree import exists
from neurontools.cache.use import is_in_use
from neurontools.cache.walk import HINT, NotACacheError, RegistryRecord, Walk, looking_at, place_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.location import Location

__all__ = ["Entry", "NotACacheError", "Scan", "is_in_use", "read_entry", "scan", "scan_location"]


@dataclass(frozen=True, slots=True)
class Scan:
    """A root's content. `exists` is False for a root not made yet.

    `skipped` counts names that are no layout's, `unread` entries and directories that cannot be read.
    """

    root: str
    exists: bool
    entries: tuple[Entry, ...]
    skipped: int
    registry: tuple[RegistryRecord, ...] = ()
    unread: int = 0


def scan(root: str, *, details: bool = True, listed: Callable[[int], None] | None = None) -> Scan:
    """Return what a root holds.

    Args:
        root: the directory, or `s3://bucket/prefix`.
        details: read the compiler's flags and the network's name of each entry, too.
        listed: is told now and then how many objects of a bucket are listed.

    Raises:
        NotACacheError: it exists and is no directory, cannot be read, or holds no sign of a compile cache.
    """
    return scan_places(walk(root, listed), details=details)


def scan_places(
    found: Walk, *, details: bool = True, looked: Callable[[int, int], None] | None = None
) -> Scan:
    """Return what is at the places of a walk; see `scan`.

    Args:
        found: the walk.
        details: as for `scan`.
        looked: is told now and then at how many of how many entries was looked.
    """
    with collector_paused():
        if details:
            found.tree.expect(details_of(found.places))
        reader = EntryReader(found.root, found.tree).for_many()
        read = [reader.read(place, details=details) for place in looking_at(found.places, looked)]
    entries = tuple(entry for entry in read if entry is not None)
    missed = (place for place, entry in zip(found.places, read, strict=True) if entry is None)
    lost = sum(exists(found.tree, place.path) for place in missed)
    return Scan(
        found.root,
        exists=found.exists,
        entries=entries,
        skipped=found.skipped,
        registry=tuple(found.registry),
        unread=len(found.unread) + lost,
    )


def scan_location(
    location: Location, *, details: bool = True, listed: Callable[[int], None] | None = None
) -> Scan:
    """Return what the root of a location holds; only a root that was named by hand must be there; see `scan`.

    Raises:
        NotACacheError: as `scan`, or the command line names a directory that does not exist.
    """
    found = scan(location.root, details=details, listed=listed)
    must_exist(location, found)
    return found


def must_exist(location: Location, found: Scan | Walk) -> None:
    """Refuse a root that was named on the command line and is not there.

    Raises:
        NotACacheError: it is not.
    """
    if not found.exists and location.source == ARGUMENT_SOURCE:
        why = "no object's name begins so" if location.is_remote else "no such directory"
        raise NotACacheError(f"there is no compile cache at {location.root}: {why}", HINT)


def read_entry(root: str, path: str, *, details: bool = True) -> Entry | None:
    """Return an entry as it is now, or None when it is gone or nothing of a cache."""
    place = place_of(root, path)
    return EntryReader(root).read(place, details=details) if place is not None else None
