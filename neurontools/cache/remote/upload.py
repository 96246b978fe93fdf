"""Write entries to a bucket so that readers see them whole or not at all: the done marker is written last.

Two hosts may write the same entry at once: each object appears whole, new objects replace nothing, and the second host
finds the entry finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.remote.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.remote.bucket import Bucket, StoredObject

_RESULT = (layouts.NEFF, layouts.DONE)


def upload_entry(
    bucket: Bucket, directory: str, names: Sequence[str], target: str, *, replace: bool = False
) -> bool:
    """Write files of a directory to a bucket; objects with the same content are not sent again.

    Args:
        bucket: the target.
        directory: contains the files.
        names: of the files, the marker of a finished entry last.
        target: the entry's path in the bucket.
        replace: the finished entry there is damaged; write it again.

    Returns:
        Whether this call finished the entry; False if another host did.

    Raises:
        RemoteError: it cannot be written, or was removed meanwhile.
        OSError: a file cannot be read.
    """
    existing = _list_entry(bucket, target)
    is_result = layouts.DONE in names
    if is_result and not replace and all(name in existing for name in _RESULT):
        return False
    is_ours = is_last_ours = True
    for name in names:
        if name == layouts.DONE and not is_ours and layouts.NEFF not in _list_entry(bucket, target):
            raise RemoteError(f"cannot write {target}: another host is writing it", "try again later")
        source, path, stored = f"{directory}/{name}", f"{target}/{name}", existing.get(name)
        is_last_ours = (stored is not None and bucket.is_same(stored, source)) or bucket.upload(
            path, source, only_new=stored is None
        )
        is_ours = is_ours and is_last_ours
    if not is_result:
        return True
    now = _list_entry(bucket, target)
    if not all(name in now for name in _RESULT):
        raise RemoteError(f"cannot write {target}: it was removed meanwhile", "try again")
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
