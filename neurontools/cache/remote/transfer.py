"""Transfer of entries between a bucket and directories. Readers see an uploaded entry whole or not at all.

An upload writes the done marker last. Two hosts may write the same entry at once: each object appears whole, new
objects replace nothing, and the second host finds the entry finished.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.remote.bucket import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from neurontools.cache.remote.bucket import Bucket, StoredObject
    from neurontools.cache.remote.tree import BucketTree
    from neurontools.cache.walk import EntryRef

_RESULT = (layouts.NEFF, layouts.DONE)


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


def upload_entry(bucket: Bucket, files: Mapping[str, str], target: str, *, replace: bool = False) -> bool:
    """Write the files of an entry to a bucket; objects with the same content are not sent again.

    Args:
        bucket: the target.
        files: their paths by name, the marker of a finished entry last.
        target: the entry's path in the bucket.
        replace: the finished entry there is damaged; write it again.

    Returns:
        Whether this call finished the entry; False if another host did.

    Raises:
        RemoteError: it cannot be written, or was removed meanwhile.
        OSError: a file cannot be read.
    """
    existing = _list_entry(bucket, target)
    is_result = layouts.DONE in files
    if is_result and not replace and all(name in existing for name in _RESULT):
        return False
    is_ours = is_last_ours = True
    for name, source in files.items():
        if name == layouts.DONE and not is_ours and layouts.NEFF not in _list_entry(bucket, target):
            raise RemoteError(f"cannot write {target}: another host is writing it", "try again later")
        path, stored = f"{target}/{name}", existing.get(name)
        is_last_ours = (stored is not None and bucket.is_same(stored, source)) or bucket.upload(
            path, source, only_new=stored is None
        )
        is_ours = is_ours and is_last_ours
    if not is_result:
        return True
    now = _list_entry(bucket, target)
    if not all(name in now for name in _RESULT):
        raise RemoteError(f"cannot write {target}: it was removed during the write", "try again")
    return is_last_ours


def upload_files(bucket: Bucket, pairs: Sequence[tuple[str, str]]) -> bool:
    """Write files to a bucket, for entries of other stacks: existing objects are never replaced.

    Args:
        bucket: the target.
        pairs: a file and the path of its object; the file that completes the entry last.

    Returns:
        False if the last one exists.

    Raises:
        RemoteError: it cannot be written, or another unfinished entry is there.
        OSError: a file cannot be read.
    """
    last = pairs[-1][1]
    if bucket.find_object(last) is not None:
        return False
    for source, target in pairs:
        stored = bucket.find_object(target)
        if stored is not None and bucket.is_same(stored, source):
            continue
        if not bucket.upload(target, source, only_new=True):
            if target == last:
                return False
            raise RemoteError(
                f"cannot write {target}: another unfinished entry is there", "remove that entry"
            )
    return True


def _list_entry(bucket: Bucket, entry: str) -> dict[str, StoredObject]:
    above = f"{entry}/"
    return {
        stored.path.removeprefix(above): stored
        for stored in bucket.list_objects(entry)
        if stored.path.startswith(above)
    }
