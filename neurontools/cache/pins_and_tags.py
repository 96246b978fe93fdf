"""Pins, which protect an entry from every removal, and tags. Each is an empty file in the entry."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neurontools.base.directories import open_below
from neurontools.cache import layouts
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.location import open_root
from neurontools.cache.locks import hold, release
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.base.directories import Directory
    from neurontools.cache.walk import EntryRef


_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


class TagError(NeuronToolsError):
    """An entry cannot be pinned or tagged."""


def set_pin(root: str, place: EntryRef) -> bool:
    """Pin an entry; return False when it was pinned.

    Raises:
        TagError: it is gone, cannot be written to, or its layout is a single file.
    """
    return _set(root, place, layouts.PIN)


def remove_pin(root: str, place: EntryRef) -> bool:
    """Unpin an entry; return False when it was not pinned.

    Raises:
        TagError: as `set_pin`.
    """
    return _remove(root, place, layouts.PIN)


def set_tag(root: str, place: EntryRef, tag: str) -> bool:
    """Tag an entry; return False when it had the tag.

    Raises:
        UsageError: the tag is invalid.
        TagError: as `set_pin`.
    """
    return _set(root, place, layouts.TAG_PREFIX + _check_tag(tag))


def remove_tag(root: str, place: EntryRef, tag: str) -> bool:
    """Take a tag from an entry; return False when it did not have it.

    Raises:
        UsageError: the tag is invalid.
        TagError: as `set_pin`.
    """
    return _remove(root, place, layouts.TAG_PREFIX + _check_tag(tag))


def is_tag_file(name: str) -> bool:
    """Return whether a file of an entry is one of its tags."""
    return name.startswith(layouts.TAG_PREFIX) and _TAG.fullmatch(name[len(layouts.TAG_PREFIX) :]) is not None


def check_taggable(places: Sequence[EntryRef]) -> None:
    """Reject single-file entries, which cannot hold pins or tags.

    Raises:
        TagError: there is one.
    """
    for place in places:
        if place.layout is CacheLayout.TORCHNEURON:
            raise TagError(
                f"{place.path} cannot be pinned or tagged: in TorchNeuron's layout an entry is a single file"
            )


def _check_tag(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        raise UsageError(
            f"invalid tag {tag!a}",
            "use 1 to 64 letters, digits and . _ @ + -, starting with a letter or digit",
        )
    return tag


def _set(root: str, place: EntryRef, name: str) -> bool:
    with _hold_entry(root, place) as entry:
        try:
            entry.create(name)
        except FileExistsError:
            return False
    return True


def _remove(root: str, place: EntryRef, name: str) -> bool:
    with _hold_entry(root, place) as entry:
        try:
            entry.unlink(name)
        except FileNotFoundError:
            return False
    return True


@contextmanager
def _hold_entry(root: str, place: EntryRef) -> Iterator[Directory]:
    """Open and hold an entry while it is changed: a removal looks for pins after it has locked the entry."""
    check_taggable([place])
    held = hold(place.path)
    if held is None:
        raise TagError(f"the entry {place.path} is gone or cannot be read")
    try:
        open_root(root).close()
        with open_below(root, place.path) as entry:
            yield entry
    except OSError as error:
        raise TagError(
            f"cannot pin or tag the entry {place.path}: {error.strerror}",
            "run this as the owner of the cache, on a host where it is writable",
        ) from error
    finally:
        release(held)
