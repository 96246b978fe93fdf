"""A bucket as either end of a sync."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neurontools.cache.generations import Generation
from neurontools.cache.remote.connection import Connection
from neurontools.cache.remote.copies import copied, copy_entry
from neurontools.cache.remote.errors import RemoteError
from neurontools.cache.remote.sending import send_entry, send_files
from neurontools.cache.remote.tree import BucketTree
from neurontools.cache.sync.ends import NotMovedError, check_sound, files_to_move
from neurontools.cache.sync.sync_plan import carries_of, relative_path
from neurontools.cache.walk import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.entries import Entry
    from neurontools.cache.sync.ends import Source


class BucketSource:
    """A root in a bucket to read entries from."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._connection = Connection(root)

    @contextmanager
    def opened(self, entry: Entry) -> Iterator[tuple[str, Place]]:
        """Give a temporary root with a copy of the entry.

        Raises:
            NotMovedError: it is gone.
            RemoteError: it cannot be read.
        """
        place = Place(entry.path, entry.generation, entry.compiler, entry.module)
        with _told_as_gone(), copied(self._tree(), self.root, place) as found:
            yield found

    def copy(self, entry: Entry, directory: str) -> None:
        """Copy the objects of an entry that are moved; the time of the copy counts as its last use.

        Raises:
            NotMovedError: one is gone.
            RemoteError: one cannot be read.
            OSError: one cannot be written.
        """
        with _told_as_gone():
            copy_entry(self._tree(), entry.path, directory, wanted=carries_of(entry), dated=False)

    def _tree(self) -> BucketTree:
        return BucketTree(self.root, connection=self._connection)


class BucketTarget:
    """A root in a bucket to write entries to."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._connection = Connection(root)

    def put(self, entry: Entry, source: Source) -> bool:
        """Check an entry and send it, its done marker last; return False when another host has finished it.

        Raises:
            NotMovedError: it is damaged, or gone.
            RemoteError: it cannot be written.
        """
        with source.opened(entry) as (root, place):
            check_sound(root, place, entry.state)
            files = files_to_move(place.path, entry)
            target = f"{self._root}/{relative_path(source.root, entry)}"
            if entry.generation is Generation.CURRENT:
                return send_entry(
                    self._connection, place.path, [os.path.basename(path) for path in files], target
                )
            pairs = [(path, target + path.removeprefix(place.path)) for path in files]
            return send_files(self._connection, pairs)


@contextmanager
def _told_as_gone() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        if not error.is_gone:
            raise
        raise NotMovedError("changed or gone meanwhile") from error
