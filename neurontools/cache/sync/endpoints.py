"""Both ends of a sync: the source that entries are read from and the target they go to, a directory or a bucket."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from neurontools.base.directories import open_file_below
from neurontools.base.files import sync_directory
from neurontools.cache import verify
from neurontools.cache.archives.archive import in_writing_order
from neurontools.cache.entries import EntryReader
from neurontools.cache.entry_files import State
from neurontools.cache.install import install_entry, install_file
from neurontools.cache.layouts import SENTINEL, CacheLayout
from neurontools.cache.locks import hold, release
from neurontools.cache.remote.bucket import RemoteError
from neurontools.cache.sync.plan import is_file_moved, relative_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from neurontools.cache.entries import Entry
    from neurontools.cache.remote.tree import BucketTree
    from neurontools.cache.walk import EntryRef


class NotMovedError(Exception):
    """An entry is left out after all; the text is the reason."""


class SyncSource(Protocol):
    """The root that entries come from. Methods raise NotMovedError if an entry has changed or is gone."""

    root: str

    def open(self, entry: Entry) -> AbstractContextManager[tuple[str, EntryRef]]:
        """Yield a local root and the place of the entry in it, as it is now."""

    def copy(self, entry: Entry, directory: str) -> None:
        """Copy the moved files of an entry to a new directory, to disk."""


class SyncTarget(Protocol):
    """The root that entries go to."""

    def put(self, entry: Entry, source: SyncSource) -> bool:
        """Add an entry; return False if it exists. Raises NotMovedError if it cannot be added."""


class DirectorySource:
    """A directory as source. Entries are held while they are read, so that no prune removes them meanwhile."""

    def __init__(self, root: str) -> None:
        self.root = root

    @contextmanager
    def open(self, entry: Entry) -> Iterator[tuple[str, EntryRef]]:
        """Yield the root and the entry's place in it."""
        place = entry.place
        held = hold(entry.path)
        try:
            found = EntryReader(self.root).read(place, details=False)
            if found is None:
                raise NotMovedError("removed meanwhile")
            if found.state is not entry.state:
                raise NotMovedError(f"its state changed to {found.state.value} meanwhile")
            yield self.root, place
        finally:
            release(held)

    def copy(self, entry: Entry, directory: str) -> None:
        """Copy the moved files of an entry."""
        with self.open(entry) as (root, place):
            os.makedirs(os.path.dirname(directory) if _is_file(entry) else directory)
            for path in files_to_move(place.path, entry):
                target = directory + path.removeprefix(place.path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                copy_file_below(root, path, target)


class DirectoryTarget:
    """A directory as target. `temporary` is a directory in it that only this process uses."""

    def __init__(self, root: str, temporary: str) -> None:
        self._root = root
        self._temporary = temporary
        self._numbers = itertools.count()

    def put(self, entry: Entry, source: SyncSource) -> bool:
        """Copy an entry, verify the copy, and move it to its place in one step."""
        relative = relative_path(source.root, entry)
        root = f"{self._temporary}/{next(self._numbers)}"
        staged = f"{root}/{relative}"
        try:
            source.copy(entry, staged)
            check_sound(root, replace(entry.place, path=staged), entry.state)
            outcome = self._install(entry, staged, relative)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        if outcome == "locked":
            raise NotMovedError("a process is compiling it there")
        if outcome == "imported":
            sync_directory(os.path.dirname(f"{self._root}/{relative}"))
        return outcome == "imported"

    def _install(self, entry: Entry, staged: str, relative: str) -> str:
        target = f"{self._root}/{relative}"
        if _is_file(entry):
            return install_file(self._root, staged, target)
        for directory, _, _ in os.walk(staged):
            sync_directory(directory)
        fill = entry.state is State.DONE and entry.layout is CacheLayout.CURRENT
        names = in_writing_order(os.listdir(staged)) if fill else ()
        outcome = install_entry(self._root, staged, relative, names, fill=fill)
        is_vllm = entry.layout is CacheLayout.VLLM
        if outcome == "present" and is_vllm and not os.path.exists(f"{target}/{SENTINEL}"):
            raise NotMovedError(
                "the target has an unfinished entry; only the tool that wrote it can finish or replace it"
            )
        return outcome


class BucketSource:
    """A root in a bucket as source."""

    def __init__(self, root: str) -> None:
        from neurontools.cache.remote.bucket import Bucket

        self.root = root
        self._bucket = Bucket(root)

    @contextmanager
    def open(self, entry: Entry) -> Iterator[tuple[str, EntryRef]]:
        """Yield a temporary root with a copy of the entry."""
        from neurontools.cache.remote.transfer import replica

        with _not_moved_if_gone(), replica(self._tree(), self.root, entry.place) as found:
            yield found

    def copy(self, entry: Entry, directory: str) -> None:
        """Copy the moved objects of an entry; the time of the copy counts as its last use."""
        from neurontools.cache.remote.transfer import copy_entry

        with _not_moved_if_gone():
            copy_entry(
                self._tree(),
                entry.path,
                directory,
                is_wanted=lambda name: is_file_moved(name, entry),
                keep_times=False,
            )

    def _tree(self) -> BucketTree:
        from neurontools.cache.remote.tree import BucketTree

        return BucketTree(self.root, bucket=self._bucket)


class BucketTarget:
    """A root in a bucket as target."""

    def __init__(self, root: str) -> None:
        from neurontools.cache.remote.bucket import Bucket

        self._root = root
        self._bucket = Bucket(root)

    def put(self, entry: Entry, source: SyncSource) -> bool:
        """Verify an entry and upload it, its done marker last."""
        from neurontools.cache.remote.transfer import upload_entry, upload_files

        with source.open(entry) as (root, place), ExitStack() as stack:
            check_sound(root, place, entry.state)
            target = f"{self._root}/{relative_path(source.root, entry)}"
            files = {
                path.removeprefix(place.path): _descriptor_path(stack, _open_to_move(root, path))
                for path in files_to_move(place.path, entry)
            }
            if entry.layout is CacheLayout.CURRENT:
                named = {name.removeprefix("/"): file for name, file in files.items()}
                return upload_entry(self._bucket, named, target)
            return upload_files(self._bucket, [(file, target + name) for name, file in files.items()])


def _descriptor_path(stack: ExitStack, descriptor: int) -> str:
    stack.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def files_to_move(path: str, entry: Entry) -> list[str]:
    """Return the files of an entry that are moved, in writing order.

    Args:
        path: of the entry now: a directory, or its one file.
        entry: as planned.
    """
    if _is_file(entry):
        return [path]
    names = os.listdir(path) if entry.layout is CacheLayout.CURRENT else _names_below(path)
    return [f"{path}/{name}" for name in in_writing_order([n for n in names if is_file_moved(n, entry)])]


def check_sound(root: str, place: EntryRef, state: State) -> None:
    """Raise NotMovedError if an entry is damaged, or no longer in the planned state."""
    _, findings = verify.verify_entries(root, [place])
    reason = verify.damage_reason(findings)
    if reason:
        raise NotMovedError(reason)
    found = EntryReader(root).read(place, details=False)
    if found is None or found.state is not state:
        raise NotMovedError("it changed while it was read")


def copy_file_below(root: str, path: str, target: str) -> None:
    """Copy a file below a root to disk."""
    with os.fdopen(_open_to_move(root, path), "rb") as file, open(target, "xb") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())


def _open_to_move(root: str, path: str) -> int:
    """Open a regular file below a root; raise NotMovedError for a pipe or directory."""
    try:
        return open_file_below(root, path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise NotMovedError(f"{os.path.basename(path)} is not a regular file") from error
        raise OSError(error.errno, error.strerror, path) from error


def _is_file(entry: Entry) -> bool:
    return entry.layout is CacheLayout.TORCHNEURON


def _names_below(path: str) -> list[str]:
    """Return the relative paths of all files and links below a directory; links are not followed."""
    return [
        os.path.relpath(f"{directory}/{name}", path)
        for directory, inner, names in os.walk(path)
        for name in (*names, *(link for link in inner if os.path.islink(f"{directory}/{link}")))
    ]


@contextmanager
def _not_moved_if_gone() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        if not error.is_gone:
            raise
        raise NotMovedError("changed or removed meanwhile") from error
