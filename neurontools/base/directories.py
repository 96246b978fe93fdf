"""Directories that other users may write to, used by descriptor.

A directory is opened component by component below a root that the user named. No component may be a link, and names are
relative to the open directory, so a directory that is replaced between a check and a use does not redirect an access.
Files are regular files: a link is refused, and a pipe is not waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from neurontools.base.files import READ_SAFELY, check_regular, temporary_name, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MOST_LEVELS = 32


class Directory:
    """An open directory. `path` is for messages; every access uses the descriptor.

    Names are single components. All methods raise OSError like the functions of `os`.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path

    @classmethod
    def open(cls, path: str) -> Directory:
        """Open a directory that the user named: links on the way to it are followed."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def subdirectory(self, name: str) -> Directory:
        """Open a directory in this one, which must not be a link."""
        path = f"{self.path}/{name}"
        try:
            return Directory(os.open(name, _OPEN, dir_fd=self.descriptor), path)
        except NotADirectoryError as error:
            found = self.status(name)
            is_link = found is not None and stat.S_ISLNK(found.st_mode)
            raise NotADirectoryError(
                error.errno, f"{path} is {'a link' if is_link else 'not a directory'}"
            ) from error

    def ensure_subdirectory(self, name: str, *, mode: int = 0o777) -> Directory:
        """Open a directory in this one; it is created if it does not exist."""
        try:
            return self.subdirectory(name)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=self.descriptor)
            return self.subdirectory(name)

    def open_file(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open a regular file and return its descriptor; anything else is refused without waiting."""
        descriptor = os.open(name, flags | READ_SAFELY, mode, dir_fd=self.descriptor)
        return check_regular(descriptor, f"{self.path}/{name}")

    @contextmanager
    def opened_item(self, name: str) -> Iterator[int]:
        """Open a regular file or a directory, for locks and comparisons."""
        descriptor = os.open(name, READ_SAFELY, dir_fd=self.descriptor)
        try:
            if stat.S_IFMT(os.fstat(descriptor).st_mode) not in {stat.S_IFREG, stat.S_IFDIR}:
                raise OSError(errno.EINVAL, "not a file or directory", f"{self.path}/{name}")
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, name: str, most_bytes: int = -1) -> bytes:
        """Return the content of a regular file, or its first bytes."""
        with os.fdopen(self.open_file(name), "rb") as file:
            return file.read(most_bytes)

    def status(self, name: str) -> os.stat_result | None:
        """Return the metadata of a name, which may be a link, or None without such a name."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def has_file(self, name: str) -> bool:
        """Return whether a regular file has a name."""
        found = self.status(name)
        return found is not None and stat.S_ISREG(found.st_mode)

    def names(self) -> list[str]:
        """Return the names in the directory, sorted."""
        return sorted(os.listdir(self.descriptor))

    def write(self, name: str, data: bytes | str, *, sync: bool = True) -> None:
        """Replace a file so that a reader sees the old or the new content, whatever happens meanwhile.

        A link or pipe of that name is replaced, too.
        """
        temporary = self.write_temporary(data, sync=sync)
        try:
            self.rename(temporary, self, name)
        except BaseException:
            self.remove_quietly(temporary)
            raise
        if sync:
            self.sync()

    def write_temporary(self, data: bytes | str, *, sync: bool = True) -> str:
        """Write data under a new temporary name and return the name; nothing is left behind after an error."""
        name = os.path.basename(temporary_name(""))
        try:
            self.create(name, data, sync=sync)
        except BaseException:
            self.remove_quietly(name)
            raise
        return name

    def create(self, name: str, data: bytes | str = b"", *, sync: bool = False) -> None:
        """Create a file that does not exist yet."""
        descriptor = os.open(name, _CREATE, 0o666, dir_fd=self.descriptor)
        try:
            write_all(descriptor, data.encode("utf-8", "replace") if isinstance(data, str) else data)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, name: str, target: Directory, new_name: str) -> None:
        """Move a name to another directory or name; a file there is replaced."""
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    def link(self, name: str, target: Directory, new_name: str) -> None:
        """Give a file a second name, which must not exist."""
        os.link(
            name,
            new_name,
            src_dir_fd=self.descriptor,
            dst_dir_fd=target.descriptor,
            follow_symlinks=False,
        )

    def make_directory(self, name: str, mode: int = 0o777) -> None:
        """Create a directory that does not exist yet."""
        os.mkdir(name, mode, dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file, link or pipe."""
        os.unlink(name, dir_fd=self.descriptor)

    def remove_quietly(self, name: str) -> None:
        """Remove a file; it does not matter if it is gone or cannot be removed."""
        with suppress(OSError):
            self.unlink(name)

    def remove_if_empty(self, name: str) -> bool:
        """Remove a directory if it is empty; return whether it was removed."""
        try:
            os.rmdir(name, dir_fd=self.descriptor)
        except OSError:
            return False
        return True

    def touch(self, name: str) -> None:
        """Set the modification time of a regular file to now."""
        descriptor = self.open_file(name, os.O_WRONLY)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Make renames in the directory durable, where the file system can."""
        with suppress(OSError):
            os.fsync(self.descriptor)

    def is_same(self, name: str, descriptor: int) -> bool:
        """Return whether a name, which must not be a link, still is the open file or directory."""
        found = self.status(name)
        return found is not None and os.path.samestat(found, os.fstat(descriptor))

    def remove_tree(self, name: str, levels: int = _MOST_LEVELS) -> None:
        """Remove a file, or a directory with its content; errors are ignored, links are not followed.

        A directory that is replaced meanwhile stays: only what was opened is emptied and removed.
        """
        try:
            self.unlink(name)
        except OSError:
            with suppress(OSError), self.subdirectory(name) as inner:
                inner.remove_content(levels - 1)
                if self.is_same(name, inner.descriptor):
                    self.remove_if_empty(name)

    def remove_content(self, levels: int = _MOST_LEVELS) -> None:
        """Remove all names in the directory, as far as that is possible; deeper levels stay."""
        if levels:
            for name in os.listdir(self.descriptor):
                self.remove_tree(name, levels)


def check_ours(directory: Directory) -> None:
    """Refuse a directory of another user.

    Raises:
        PermissionError: it belongs to another user.
    """
    owner = os.fstat(directory.descriptor).st_uid
    if owner != os.geteuid():
        raise PermissionError(errno.EPERM, f"{directory.path} belongs to uid {owner}", directory.path)


def open_below(root: str, path: str, *, create: bool = False) -> Directory:
    """Open a directory below a root without following a link below the root.

    Args:
        root: a directory that the user named; it may be a link.
        path: the root itself, or the root, a slash and names.
        create: create missing directories below the root.

    Raises:
        OSError: it does not exist, is not a directory, cannot be opened, or the path leads through a link.
    """
    found = Directory.open(root)
    if path == root:
        return found
    if not path.startswith(root.rstrip("/") + "/") or ".." in path.split("/"):
        found.close()
        raise OSError(errno.EINVAL, f"it is not below {root}", path)
    for name in path[len(root.rstrip("/")) + 1 :].split("/"):
        with found:
            inner = found.ensure_subdirectory(name) if create else found.subdirectory(name)
        found = inner
    return found


def open_file_below(root: str, path: str) -> int:
    """Open a regular file below a root, as `open_below`, and return its descriptor."""
    directory, name = open_parent(root, path)
    with directory:
        return directory.open_file(name)


def open_parent(root: str, path: str, *, create: bool = False) -> tuple[Directory, str]:
    """Open the directory of a path below a root; return it and the name of the path in it. See `open_below`."""
    above, _, name = path.rpartition("/")
    return open_below(root, above, create=create), name
