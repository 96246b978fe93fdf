"""Entries of a bucket as directories, for what has to read whole files."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.cache.remote.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.cache.remote.connection import Stored
    from neurontools.cache.remote.tree import BucketTree
    from neurontools.cache.walk import Place


@contextmanager
def copied(tree: BucketTree, root: str, place: Place) -> Iterator[tuple[str, Place]]:
    """Give a temporary root that holds nothing but a copy of one entry, and the entry's place in it.

    Raises:
        RemoteError: it cannot be read.
        OSError: there is no room for it.
    """
    with tempfile.TemporaryDirectory(prefix="neuron-cache-") as local:
        path = f"{local}/{place.path.removeprefix(root + '/')}"
        copy_entry(tree, place.path, path)
        yield local, replace(place, path=path)


def copy_entry(
    tree: BucketTree,
    entry: str,
    directory: str,
    *,
    wanted: Callable[[str], bool] = lambda _: True,
    dated: bool = True,
) -> None:
    """Copy the objects of an entry into a new directory, to disk.

    Args:
        tree: has the entry.
        entry: its path in the bucket.
        directory: where it goes; for an entry that is one object, the file.
        wanted: says by the name below the entry whether an object is copied.
        dated: the copies get the objects' times.

    Raises:
        RemoteError: one cannot be read.
        OSError: one cannot be written.
    """
    inside = list(tree.below(entry))
    single = tree.stored(entry)
    if single is not None:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        _copy_object(tree, single, directory, dated=dated)
        return
    os.makedirs(directory)
    for stored in inside:
        name = stored.path.removeprefix(entry + "/")
        if wanted(name):
            # A key may hold anything between its slashes.
            if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
                raise RemoteError(f"the key of {stored.path!a} is no file's name")
            os.makedirs(os.path.dirname(f"{directory}/{name}"), exist_ok=True)
            _copy_object(tree, stored, f"{directory}/{name}", dated=dated)


def _copy_object(tree: BucketTree, stored: Stored, path: str, *, dated: bool) -> None:
    with open(path, "x+b") as file:
        if stored.size_bytes:
            tree.connection.download(stored, file)
        file.flush()
        os.fsync(file.fileno())
        if dated:
            os.utime(file.fileno(), (stored.changed_unix_s, stored.changed_unix_s))
