"""A bucket as a tree of directories: one listing gives names, sizes and times of everything in it."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.text import is_plain
from neurontools.cache.location import split
from neurontools.cache.locks import parse_lock
from neurontools.cache.remote.bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.cache.locks import LockState
    from neurontools.cache.remote.bucket import StoredObject

_MAX_LOCK_BYTES = 4096
_MAX_SLASHES = 64
"""Keys with more, or with NUL, are left out: no layout has them, and no directory can hold a copy."""


@dataclass(frozen=True, slots=True)
class BucketItem:
    """A name in a bucket, with the methods of `os.DirEntry`: an object, or a prefix of other keys (`stored` None)."""

    name: str
    path: str
    stored: StoredObject | None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is a prefix."""
        return self.stored is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is an object."""
        return self.stored is not None

    def is_symlink(self) -> bool:
        """Return False: buckets have no links."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        """Return size and time of the last change; there is no inode and no block count."""
        return _directory_stat(0.0) if self.stored is None else _file_stat(self.stored)


class BucketTree:
    """Reads a root in a bucket. Listings are kept: only a new tree sees later changes.

    Methods raise RemoteError when the bucket cannot be read.
    """

    def __init__(
        self, root: str, on_listed: Callable[[int], None] | None = None, bucket: Bucket | None = None
    ) -> None:
        self.bucket = Bucket(root) if bucket is None else bucket
        self._on_listed = on_listed
        self._listed: set[str] = set()
        self._folders: dict[str, dict[str, BucketItem]] = {}
        self._starts: dict[tuple[str, int, int], bytes] = {}

    @contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[BucketItem]]:
        """Yield the items of a directory; errors as `os.scandir`."""
        self._list(path)
        folder = self._folders.get(path)
        if folder is None:
            number = errno.ENOENT if self.stored(path) is None else errno.ENOTDIR
            raise OSError(number, os.strerror(number), path)
        yield iter(list(folder.values()))

    def lstat(self, path: str) -> os.stat_result:
        """Return the stat result of an object or directory; a directory is as old as its newest object."""
        self._list(path)
        stored = self.stored(path)
        if stored is not None:
            return _file_stat(stored)
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _directory_stat(max((item.changed_unix_s for item in self.below(path)), default=0.0))

    def read_start(self, path: str, most_bytes: int) -> bytes:
        """Return the first bytes of an object, b"" if it does not exist."""
        self.prefetch([(path, most_bytes)])
        stored = self.stored(path)
        return b"" if stored is None else self._starts.get(_content_key(stored, most_bytes), b"")

    def read_ends_text(self, path: str, each_bytes: int) -> str:
        """Return the start of a text and, if it is longer, its end after a line `...`."""
        text = self.read_start(path, each_bytes).decode("utf-8", "replace")
        stored = self.stored(path)
        if stored is None or stored.size_bytes <= each_bytes:
            return text
        start = max(each_bytes, stored.size_bytes - each_bytes)
        end = self.bucket.read_range(path, start, stored.size_bytes)
        return text + "\n...\n" + end.decode("utf-8", "replace")

    def examine_lock(self, path: str) -> LockState | None:
        """Return the state of a lock object; the real wrapper's lock names no owner."""
        self._list(path)
        stored = self.stored(path)
        if stored is None:
            return None
        return parse_lock(path, self.read_start(path, _MAX_LOCK_BYTES), stored.changed_unix_s)

    def prefetch(self, ranges: Iterable[tuple[str, int]]) -> None:
        """Read the first bytes of many objects at once; objects with the same tag and length are read once."""
        missing: dict[tuple[str, int, int], tuple[str, int]] = {}
        for path, most_bytes in ranges:
            self._list(path)
            stored = self.stored(path)
            if stored is not None and stored.size_bytes:
                key = _content_key(stored, most_bytes)
                if key not in self._starts:
                    missing.setdefault(key, (path, most_bytes))
        for key, data in zip(missing, self.bucket.read_starts(list(missing.values())), strict=True):
            self._starts[key] = data or b""

    def stored(self, path: str) -> StoredObject | None:
        """Return an object of the listing, None if it does not exist."""
        above, _, name = path.rpartition("/")
        item = self._folders.get(above, {}).get(name)
        return None if item is None else item.stored

    def below(self, path: str) -> Iterator[StoredObject]:
        """Yield all objects below a directory."""
        self._list(path)
        for item in self._folders.get(path, {}).values():
            if item.stored is None:
                yield from self.below(item.path)
            else:
                yield item.stored

    def _list(self, path: str) -> None:
        if any(path == listed or path.startswith(listed + "/") for listed in self._listed):
            return
        found = self.bucket.list_objects(path)
        for stored in found:
            is_below = stored.path == path or stored.path.startswith(path + "/")
            if is_below and stored.path.count("/") <= _MAX_SLASHES and is_plain(stored.path):
                self._add(stored)
        if self._on_listed is not None:
            self._on_listed(len(found))
        self._listed.add(path)

    def _add(self, stored: StoredObject) -> None:
        directory, _, name = stored.path.rpartition("/")
        self._add_directory(directory)
        # Some programs store an empty object "prefix/" to show a directory.
        if name:
            self._folders[directory][name] = BucketItem(name, stored.path, stored)

    def _add_directory(self, directory: str) -> None:
        if directory in self._folders:
            return
        self._folders[directory] = {}
        above, _, name = directory.rpartition("/")
        if split(directory)[1]:
            self._add_directory(above)
            if name:
                self._folders[above].setdefault(name, BucketItem(name, directory, None))


def _content_key(stored: StoredObject, most_bytes: int) -> tuple[str, int, int]:
    return stored.tag or stored.path, stored.size_bytes, most_bytes


def _file_stat(stored: StoredObject) -> os.stat_result:
    return _stat_result(stat.S_IFREG | 0o644, stored.size_bytes, stored.changed_unix_s)


def _directory_stat(changed: float) -> os.stat_result:
    return _stat_result(stat.S_IFDIR | 0o755, 0, changed)


def _stat_result(mode: int, size: int, changed: float) -> os.stat_result:
    seconds = int(changed)
    times = {"st_atime": changed, "st_mtime": changed, "st_ctime": changed, "st_mtime_ns": int(changed * 1e9)}
    return os.stat_result((mode, 0, 0, 1, 0, 0, size, seconds, seconds, seconds), times)
