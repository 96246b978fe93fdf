"""Both ends of a copy: the source of entries, and the target: a directory, a bucket or an archive.

Entries from elsewhere are staged inside a root, then visible in one step.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Protocol

from neurontools.base.directories import Directory, open_below, open_file_below, open_parent
from neurontools.base.files import sync_directory
from neurontools.cache import layouts, verify
from neurontools.cache.copy.archive import add_file
from neurontools.cache.copy.plan import in_writing_order, is_file_copied, relative_path
from neurontools.cache.entries import Entry, EntryReader
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import SENTINEL, CacheLayout
from neurontools.cache.locks import directory_lock, hold, release, try_lock
from neurontools.cache.remote.bucket import RemoteError

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator, Sequence

    from neurontools.cache.remote.tree import BucketTree
    from neurontools.cache.walk import EntryRef


_ATTEMPTS = 20


@contextmanager
def staging_directory(root: str) -> Iterator[str]:
    """Provide a staging directory in a root for one process at a time; leftovers of a killed one are removed.

    The path leads to it through this process's open descriptor, even if another user renames directories in the root.

    Raises:
        OSError: the root cannot be written to.
    """
    with directory_lock(root, layouts.IMPORTING) as directory:
        directory.remove_content()
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        directory.make_directory(name, mode=0o700)
        with directory.subdirectory(name) as inner:
            try:
                yield f"/proc/self/fd/{inner.descriptor}"
            finally:
                directory.remove_tree(name)


def install_entry(root: str, staged: str, relative: str, names: Sequence[str], *, fill: bool = True) -> str:
    """Move a directory to where its entry belongs.

    Args:
        root: the cache.
        staged: a directory on the same file system.
        relative: the entry's path below the root.
        names: the directory's files, the done marker last.
        fill: complete an existing unfinished entry; otherwise an existing entry stays as it is.

    Returns:
        "copied", "present", or "locked" by a process that compiles it.

    Raises:
        OSError: the root cannot be written to.
    """
    target = f"{root}/{relative}"
    for _ in range(_ATTEMPTS):
        try:
            above, name = open_parent(root, target, create=True)
            with above:
                os.rename(staged, name, dst_dir_fd=above.descriptor)
        except FileNotFoundError:
            continue  # a removal deleted the compiler's empty directory
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
        else:
            return "copied"
        try:
            return _complete(root, staged, target, names) if fill else "present"
        except FileNotFoundError:
            continue  # the existing entry was removed meanwhile
    return "locked"


def install_file(root: str, staged: str, target: str) -> str:
    """Move a single-file entry to its path in a root; return "copied" or "present".

    Raises:
        OSError: the root cannot be written to.
    """
    for _ in range(_ATTEMPTS):
        try:
            above, name = open_parent(root, target, create=True)
            with above:
                # Unlike a rename, a link never replaces a file.
                os.link(staged, name, dst_dir_fd=above.descriptor, follow_symlinks=False)
        except FileExistsError:
            return "present"
        except FileNotFoundError:
            continue  # a removal deleted the empty directory
        os.unlink(staged)
        return "copied"
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), target)


def _complete(root: str, staged: str, target: str, names: Sequence[str]) -> str:
    """Complete an unfinished entry under its lock, like a compile."""
    with open_below(root, target) as directory:
        if _is_finished(directory):
            return "present"
        lock = try_lock(root, target)
        if lock is None:
            return "locked"
        try:
            if _is_finished(directory):
                return "present"
            directory.remove_quietly(layouts.DONE)
            directory.remove_quietly(layouts.LOG)
            for name in names:
                os.replace(f"{staged}/{name}", name, dst_dir_fd=directory.descriptor)
            directory.sync()
        finally:
            lock.release()
    return "copied"


def _is_finished(directory: Directory) -> bool:
    return directory.has_file(layouts.NEFF) and directory.has_file(layouts.DONE)


class NotCopiedError(Exception):
    """An entry is left out after all; the text is the reason."""


class CopySource(Protocol):
    """The root that entries come from. Methods raise NotCopiedError if an entry has changed or is gone."""

    root: str

    def open(self, entry: Entry) -> AbstractContextManager[tuple[str, EntryRef]]:
        """Yield a local root and the place of the entry in it, as it is now."""

    def copy(self, entry: Entry, directory: str) -> None:
        """Copy the files of an entry to a new directory, to disk."""


class CopyTarget(Protocol):
    """The root that entries go to."""

    def put(self, entry: Entry, source: CopySource) -> bool:
        """Add an entry; return False if it exists. Raises NotCopiedError if it cannot be added."""


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
            current = EntryReader(self.root).read(place, details=False)
            if current is None:
                raise NotCopiedError("removed meanwhile")
            if current.state is not entry.state:
                raise NotCopiedError(f"its state changed to {current.state.value} meanwhile")
            yield self.root, place
        finally:
            release(held)

    def copy(self, entry: Entry, directory: str) -> None:
        """Copy the files of an entry."""
        with self.open(entry) as (root, place):
            os.makedirs(os.path.dirname(directory) if _is_file(entry) else directory)
            for path in files_to_copy(place.path, entry):
                target = directory + path.removeprefix(place.path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                copy_file_below(root, path, target)


class StagedSource(DirectorySource):
    """The unpacked, verified content of an archive as source, on the file system of the target."""

    def copy(self, entry: Entry, directory: str) -> None:
        """Move an entry, which nothing else uses."""
        os.makedirs(os.path.dirname(directory))
        os.rename(entry.path, directory)


class DirectoryTarget:
    """A directory as target. `temporary` is a directory in it that only this process uses."""

    def __init__(self, root: str, temporary: str) -> None:
        self._root = root
        self._temporary = temporary
        self._numbers = itertools.count()

    def put(self, entry: Entry, source: CopySource) -> bool:
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
            raise NotCopiedError("a process is compiling it there")
        if outcome == "copied":
            sync_directory(os.path.dirname(f"{self._root}/{relative}"))
        return outcome == "copied"

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
            raise NotCopiedError(
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

        with _not_copied_if_gone(), replica(self._tree(), self.root, entry.place) as copy:
            yield copy

    def copy(self, entry: Entry, directory: str) -> None:
        """Copy the objects of an entry; the time of the copy counts as its last use."""
        from neurontools.cache.remote.transfer import copy_entry

        with _not_copied_if_gone():
            copy_entry(
                self._tree(),
                entry.path,
                directory,
                is_wanted=lambda name: is_file_copied(name, entry),
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

    def put(self, entry: Entry, source: CopySource) -> bool:
        """Verify an entry and upload it, its done marker last."""
        from neurontools.cache.remote.transfer import upload_entry, upload_files

        with source.open(entry) as (root, place), ExitStack() as stack:
            check_sound(root, place, entry.state)
            target = f"{self._root}/{relative_path(source.root, entry)}"
            files = {
                path.removeprefix(
                    place.path
                ): f"/proc/self/fd/{stack.enter_context(open_to_copy(root, path)).fileno()}"
                for path in files_to_copy(place.path, entry)
            }
            if entry.layout is CacheLayout.CURRENT:
                named = {name.removeprefix("/"): file for name, file in files.items()}
                return upload_entry(self._bucket, named, target)
            return upload_files(self._bucket, [(file, target + name) for name, file in files.items()])


class ArchiveTarget:
    """An archive as target, which holds finished entries of the current layout."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._lock = threading.Lock()
        self.count = 0

    def put(self, entry: Entry, source: CopySource) -> bool:
        """Verify an entry and append its files, its done marker last."""
        with source.open(entry) as (root, place), self._lock, ExitStack() as stack:
            check_sound(root, place, entry.state)
            relative = relative_path(source.root, entry)
            files = [
                (path.removeprefix(place.path), stack.enter_context(open_to_copy(root, path)))
                for path in files_to_copy(place.path, entry)
            ]
            for name, file in files:
                add_file(self._tar, relative + name, file)
            self.count += 1
        return True


def files_to_copy(path: str, entry: Entry) -> list[str]:
    """Return the files of an entry that are copied, in writing order.

    Args:
        path: of the entry now: a directory, or its one file.
        entry: as planned.
    """
    if _is_file(entry):
        return [path]
    names = os.listdir(path) if entry.layout is CacheLayout.CURRENT else _names_below(path)
    return [f"{path}/{name}" for name in in_writing_order([n for n in names if is_file_copied(n, entry)])]


def check_sound(root: str, place: EntryRef, state: State) -> None:
    """Raise NotCopiedError if an entry is damaged, or no longer in the planned state."""
    _, findings = verify.verify_entries(root, [place])
    reason = verify.damage_reason(findings)
    if reason:
        raise NotCopiedError(reason)
    entry = EntryReader(root).read(place, details=False)
    if entry is None or entry.state is not state:
        raise NotCopiedError("it changed while it was read")


def copy_file_below(root: str, path: str, target: str) -> None:
    """Copy a file below a root to disk."""
    with open_to_copy(root, path) as file, open(target, "xb") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())


def open_to_copy(root: str, path: str) -> IO[bytes]:
    """Open a regular file below a root; raise NotCopiedError for a pipe or directory."""
    try:
        return os.fdopen(open_file_below(root, path), "rb")
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise NotCopiedError(f"{os.path.basename(path)} is not a regular file") from error
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
def _not_copied_if_gone() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        if not error.is_gone:
            raise
        raise NotCopiedError("changed or removed meanwhile") from error
