"""Writing entries to a bucket so that readers see them whole or not at all: the done marker is written last.

Two hosts may write the same entry at once: each object appears whole, whatever is new there is not replaced, and who
comes second finds the entry finished.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.remote.connection import Connection
from neurontools.cache.remote.digests import digests_of
from neurontools.cache.remote.errors import RemoteError
from neurontools.cache.remote.parts import send_in_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.remote.connection import Stored
    from neurontools.cache.remote.digests import Digests

_RESULT = (layout.NEFF, layout.DONE)


def send_entry(
    connection: Connection, directory: str, names: Sequence[str], target: str, *, replace: bool = False
) -> bool:
    """Write files of a directory to a bucket; what is there with the same content is not sent again.

    Args:
        connection: to the bucket.
        directory: holds the files.
        names: of the files, the marker that makes the entry finished last.
        target: the entry's path in the bucket.
        replace: what is finished there is damaged; write it again.

    Returns:
        Whether this call finished the entry; False when it is another host's.

    Raises:
        RemoteError: it cannot be written, or was removed meanwhile.
        OSError: a file cannot be read.
    """
    there = _objects(connection, target)
    is_result = layout.DONE in names
    if is_result and not replace and all(name in there for name in _RESULT):
        return False
    first = alone = True
    for name in names:
        if name == layout.DONE and not alone and layout.NEFF not in _objects(connection, target):
            raise RemoteError(f"cannot write {target}: another host is writing it", "run it again")
        first = _send(connection, f"{directory}/{name}", f"{target}/{name}", there.get(name))
        alone = alone and first
    if not is_result:
        return True
    now = _objects(connection, target)
    if not all(name in now for name in _RESULT):
        raise RemoteError(f"cannot write {target}: it was removed meanwhile", "run it again")
    return first


def send_files(connection: Connection, pairs: Sequence[tuple[str, str]]) -> bool:
    """Write files to a bucket, for entries of other stacks: what is there is never replaced.

    Args:
        connection: to the bucket.
        pairs: a file and the object that it becomes; the one that makes the entry finished last.

    Returns:
        False when the last one is there.

    Raises:
        RemoteError: it cannot be written, or another unfinished one is there.
        OSError: a file cannot be read.
    """
    last = pairs[-1][1]
    if connection.stored(last) is not None:
        return False
    for source, target in pairs:
        with open(source, "rb") as file:
            digests = digests_of(file)
            there = connection.stored(target)
            same = there is not None and digests.describes(there.size_bytes, there.tag)
            if not same and not _write(connection, target, file, digests):
                if target == last:
                    return False
                raise RemoteError(
                    f"cannot write {target}: another unfinished one is there", "remove that one"
                )
    return True


def _send(connection: Connection, source: str, target: str, there: Stored | None) -> bool:
    with open(source, "rb") as file:
        digests = digests_of(file)
        if there is not None and digests.describes(there.size_bytes, there.tag):
            return True
        return _write(connection, target, file, digests, only_new=there is None)


def _write(
    connection: Connection, target: str, file: IO[bytes], digests: Digests, *, only_new: bool = True
) -> bool:
    send = send_in_parts if digests.part_md5s else Connection.upload
    return send(connection, target, file, digests, only_new=only_new)


def _objects(connection: Connection, entry: str) -> dict[str, Stored]:
    return {
        stored.path.removeprefix(entry + "/"): stored
        for page in connection.pages(f"{entry}/")
        for stored in page
    }
