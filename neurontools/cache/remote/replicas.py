"""Local copies of a bucket's entries, for operations that read whole files."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.cache import verify
from neurontools.cache.remote.bucket import Bucket
from neurontools.cache.remote.errors import RemoteError
from neurontools.cache.remote.tree import BucketTree
from neurontools.cache.remote.url import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.cache.remote.bucket import StoredObject
    from neurontools.cache.verify import VerifyProblem
    from neurontools.cache.walk import EntryRef

_JOBS = 8


def verify_root(
    root: str, places: Sequence[EntryRef], progress: Callable[[int, int], None] | None = None
) -> tuple[int, tuple[VerifyProblem, ...]]:
    """Verify entries of a directory or a bucket, as `verify.check`; entries of a bucket are copied first."""
    if not is_remote(root):
        return verify.verify_entries(root, places, progress)
    findings: list[VerifyProblem] = []
    checked = 0
    bucket = Bucket(root)
    with ThreadPoolExecutor(_JOBS) as pool:
        for number, (count, found) in enumerate(pool.map(lambda place: _verify(bucket, root, place), places)):
            if progress is not None:
                progress(number, len(places))
            checked += count
            findings += found
    return checked, tuple(findings)


def _verify(bucket: Bucket, root: str, place: EntryRef) -> tuple[int, list[VerifyProblem]]:
    try:
        with replica(BucketTree(root, bucket=bucket), root, place) as (local_root, local_place):
            count, found = verify.verify_entries(local_root, [local_place])
    except RemoteError as error:
        if error.is_gone:
            return 0, []
        raise
    return count, [replace(finding, path=root + finding.path.removeprefix(local_root)) for finding in found]


@contextmanager
def replica(tree: BucketTree, root: str, place: EntryRef) -> Iterator[tuple[str, EntryRef]]:
    """Yield a temporary root with a copy of one entry, and the entry's place in it.

    Raises:
        RemoteError: the entry cannot be read.
        OSError: the copy cannot be written.
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
    is_wanted: Callable[[str], bool] = lambda _: True,
    keep_times: bool = True,
) -> None:
    """Copy the objects of an entry into a new directory, to disk.

    Args:
        tree: of the bucket.
        entry: its path in the bucket.
        directory: the target; for an entry of one object, the target file.
        is_wanted: whether to copy an object, by its name below the entry.
        keep_times: give the copies the objects' times.

    Raises:
        RemoteError: an object cannot be read.
        OSError: a copy cannot be written.
    """
    inside = list(tree.below(entry))
    single = tree.stored(entry)
    if single is not None:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        _copy_object(tree, single, directory, keep_times=keep_times)
        return
    os.makedirs(directory)
    for stored in inside:
        name = stored.path.removeprefix(entry + "/")
        if is_wanted(name):
            # A key may contain anything between its slashes.
            if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
                raise RemoteError(f"the key of {stored.path!a} is not a valid file name")
            os.makedirs(os.path.dirname(f"{directory}/{name}"), exist_ok=True)
            _copy_object(tree, stored, f"{directory}/{name}", keep_times=keep_times)


def _copy_object(tree: BucketTree, stored: StoredObject, path: str, *, keep_times: bool) -> None:
    tree.bucket.download(stored, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    if keep_times:
        os.utime(path, (stored.changed_unix_s, stored.changed_unix_s))
