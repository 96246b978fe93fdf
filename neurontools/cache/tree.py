"""Reading a root on a file system or in a bucket: names, metadata and starts of files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from neurontools.base import files
from neurontools.cache.location import is_remote
from neurontools.cache.locks import examine_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from neurontools.cache.locks import LockState


class DirectoryItem(Protocol):
    """A name in a directory; `os.DirEntry` is one."""

    @property
    def name(self) -> str:
        """The name alone."""

    @property
    def path(self) -> str:
        """The directory's path, a slash and the name."""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a directory."""

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a plain file."""

    def is_symlink(self) -> bool:
        """Return whether it is a link."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its metadata."""


class CacheTree(Protocol):
    """Reads one root. Paths are whole: the root and the path below it."""

    def scandir(self, path: str) -> AbstractContextManager[Iterator[DirectoryItem]]:
        """Return the items of a directory; raises OSError like `os.scandir`."""

    def lstat(self, path: str) -> os.stat_result:
        """Return the metadata of a file or directory; raises OSError like `os.lstat`."""

    def read_start(self, path: str, most_bytes: int) -> bytes:
        """Return the first bytes of a file, b"" where it cannot be read."""

    def read_ends_text(self, path: str, each_bytes: int) -> str:
        """Return the start of a text file and, if it is longer, its end after a line `...`."""

    def examine_lock(self, path: str) -> LockState | None:
        """Return the state of a lock, or None when there is none."""

    def prefetch(self, ranges: Iterable[tuple[str, int]]) -> None:
        """Prefetch the first bytes of many files where single reads are slow."""


class LocalTree:
    """A root on a file system."""

    def scandir(self, path: str) -> AbstractContextManager[Iterator[DirectoryItem]]:
        """Return the items of a directory."""
        return os.scandir(path)

    lstat = staticmethod(os.lstat)
    read_start = staticmethod(files.read_start)
    read_ends_text = staticmethod(files.read_ends_text)
    examine_lock = staticmethod(examine_lock)

    def prefetch(self, ranges: Iterable[tuple[str, int]]) -> None:
        """Do nothing: local reads are fast."""


LOCAL = LocalTree()


def open_tree(root: str, on_listed: Callable[[int], None] | None = None) -> CacheTree:
    """Return the reader of a root.

    Args:
        root: a directory, or `s3://bucket/prefix`.
        on_listed: called periodically with the number of objects listed in a bucket.

    Raises:
        MissingDependencyError: the root is in a bucket, and the packages for buckets are not installed.
    """
    if not is_remote(root):
        return LOCAL
    from neurontools.cache.remote.tree import BucketTree

    return BucketTree(root, on_listed)


def exists(tree: CacheTree, path: str) -> bool:
    """Return whether something is at a path; links are not followed."""
    try:
        tree.lstat(path)
    except OSError:
        return False
    return True
