"""A bucket as a tree of directories: one listing tells names, sizes and times of all that is in it."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.locks import judge_lock
from neurontools.cache.remote.connection import Connection, Stored
from neurontools.cache.remote.url import split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.cache.locks import LockState

_MAX_LOCK_BYTES = 4096
_DIRECTORY, _FILE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644


@dataclass(frozen=True, slots=True)
class BucketItem:
    """A name in a bucket: an object, or what other keys have in front of a slash."""

    name: str
    path: str
    stored: Stored | None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002  as os.DirEntry
        """Return whether it is in front of a slash."""
        return self.stored is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is an object."""
        return self.stored is not None

    def is_symlink(self) -> bool:
        """Return False: buckets have no links."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        """Return size and time of the last change, which is also that of the last access; no inode, no blocks."""
        return _facts(_DIRECTORY, 0, 0.0) if self.stored is None else _stat(self.stored)


class BucketTree:
    """Reads a root in a bucket. What it has listed it does not list again: a new tree sees what is new."""

    def __init__(
        self,
        root: str,
        listed: Callable[[int], None] | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.connection = Connection(root) if connection is None else connection
        self._tell = listed
        self._known: set[str] = set()
        self._folders: dict[str, dict[str, BucketItem]] = {}
        self._starts: dict[tuple[str, int, int], bytes] = {}

    @contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[BucketItem]]:
        """Return what is in a directory.

        Raises:
            FileNotFoundError: no key begins so.
            NotADirectoryError: it is an object.
            RemoteError: the bucket cannot be listed.
        """
        self._know(path)
        folder = self._folders.get(path)
        if folder is None:
            number = errno.ENOENT if self.stored(path) is None else errno.ENOTDIR
            raise OSError(number, os.strerror(number), path)
        yield iter(list(folder.values()))

    def lstat(self, path: str) -> os.stat_result:
        """Return the facts of an object or directory; a directory is as old as the newest object in it.

        Raises:
            FileNotFoundError: nothing is there.
            RemoteError: the bucket cannot be listed.
        """
        self._know(path)
        stored = self.stored(path)
        if stored is not None:
            return _stat(stored)
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        newest = max((item.changed_unix_s for item in self.below(path)), default=0.0)
        return _facts(_DIRECTORY, 0, newest)

    def read_start(self, path: str, most_bytes: int) -> bytes:
        """Return the first bytes of an object, b"" where there is none.

        Raises:
            RemoteError: it cannot be read.
        """
        self.expect([(path, most_bytes)])
        stored = self.stored(path)
        return b"" if stored is None else self._starts.get(_key(stored, most_bytes), b"")

    def read_ends_text(self, path: str, each_bytes: int) -> str:
        """Return the start of a text and, where it is longer, its end behind a line `...`.

        Raises:
            RemoteError: it cannot be read.
        """
        text = self.read_start(path, each_bytes).decode("utf-8", "replace")
        stored = self.stored(path)
        if stored is None or stored.size_bytes <= each_bytes:
            return text
        first = max(each_bytes, stored.size_bytes - each_bytes)
        end = self.connection.part(path, first, stored.size_bytes - 1)
        return text + "\n...\n" + end.decode("utf-8", "replace")

    def examine_lock(self, path: str) -> LockState | None:
        """Return the state of a lock object: the real wrapper's names nobody.

        Raises:
            RemoteError: it cannot be read.
        """
        self._know(path)
        stored = self.stored(path)
        if stored is None:
            return None
        return judge_lock(path, self.read_start(path, _MAX_LOCK_BYTES), stored.changed_unix_s)

    def expect(self, wanted: Iterable[tuple[str, int]]) -> None:
        """Read the first bytes of many objects at once; those with the same tag and length are read once.

        Raises:
            RemoteError: one cannot be read.
        """
        missing: dict[tuple[str, int, int], tuple[str, int]] = {}
        for path, most_bytes in wanted:
            self._know(path)
            stored = self.stored(path)
            if stored is not None and stored.size_bytes and _key(stored, most_bytes) not in self._starts:
                missing.setdefault(_key(stored, most_bytes), (path, most_bytes))
        for key, data in zip(missing, self.connection.starts(list(missing.values())), strict=True):
            self._starts[key] = b"" if data is None else data

    def stored(self, path: str) -> Stored | None:
        """Return an object that was listed, None where there is none."""
        above, _, name = path.rpartition("/")
        item = self._folders.get(above, {}).get(name)
        return None if item is None else item.stored

    def below(self, path: str) -> Iterator[Stored]:
        """Yield all objects in a directory and in those in it, listing them if that has not been done.

        Raises:
            RemoteError: the bucket cannot be listed.
        """
        self._know(path)
        for item in self._folders.get(path, {}).values():
            if item.stored is None:
                yield from self.below(item.path)
            else:
                yield item.stored

    def _know(self, path: str) -> None:
        if any(path == known or path.startswith(known + "/") for known in self._known):
            return
        number = 0
        for page in self.connection.pages(path):
            for stored in page:
                if stored.path == path or stored.path.startswith(path + "/"):
                    self._add(stored)
            number += len(page)
            if self._tell is not None:
                self._tell(number)
        self._known.add(path)

    def _add(self, stored: Stored) -> None:
        directory, _, name = stored.path.rpartition("/")
        self._make(directory)
        # Some programs make an empty object "prefix/" so that a directory shows.
        if name:
            self._folders[directory][name] = BucketItem(name, stored.path, stored)

    def _make(self, directory: str) -> None:
        if directory in self._folders:
            return
        self._folders[directory] = {}
        above, _, name = directory.rpartition("/")
        if split(directory)[1]:
            self._make(above)
            if name:
                self._folders[above].setdefault(name, BucketItem(name, directory, None))


def _key(stored: Stored, most_bytes: int) -> tuple[str, int, int]:
    return stored.tag or stored.path, stored.size_bytes, most_bytes


def _stat(stored: Stored) -> os.stat_result:
    return _facts(_FILE, stored.size_bytes, stored.changed_unix_s)


def _facts(mode: int, size: int, changed: float) -> os.stat_result:
    seconds = int(changed)
    times = {"st_atime": changed, "st_mtime": changed, "st_ctime": changed, "st_mtime_ns": int(changed * 1e9)}
    return os.stat_result((mode, 0, 0, 1, 0, 0, size, seconds, seconds, seconds), times)
