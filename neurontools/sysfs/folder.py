"""Writing below one directory without ever following a link: every step is relative to an open directory.

A text of the same length is written over the old one, in one call; who has the file open sees it. Any other is written
aside, in a directory of its own below the same root, and moved into place. Either way no reader sees a half, and what
is not a plain file of ours alone, be it a link, a pipe or somebody's hard link, is replaced and not written through.
(Moving costs a file system such as ext4 thirty times what overwriting does.)
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY_MODE = 0o755
_ASIDE = "new"
_LONGEST = 1 << 16


class Folder:
    """A directory that is written below.

    Paths are relative and have no `..`. The directories on the way to the last path stay open, so that paths in
    order cost little.

    Args:
        descriptor: the directory, owned by this object from now on.
        aside: the name of the directory below it in which files are written before they are moved.
    """

    def __init__(self, descriptor: int, aside: str) -> None:
        self.descriptor = descriptor
        self._aside_name = aside
        self._aside = -1
        self._way: list[tuple[str, int]] = []
        self._last = ""
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every directory. A second time does nothing."""
        self.leave()
        for descriptor in (self._aside, self.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._aside = self.descriptor = -1

    def write(self, path: str, text: str, mode: int) -> None:
        """Put a file in place, making the directories on the way; what has its name is replaced.

        Raises:
            OSError: it can't be written.
        """
        directory, name = self._place(path)
        if text and _overwrite(directory, name, text.encode(), mode):
            return
        self._write_aside(text, mode)
        try:
            os.replace(_ASIDE, name, src_dir_fd=self._aside, dst_dir_fd=directory)
        except IsADirectoryError:
            self._clear(directory, name)
            os.replace(_ASIDE, name, src_dir_fd=self._aside, dst_dir_fd=directory)

    def link(self, path: str, target: str) -> None:
        """Put a symbolic link in place; what has its name is replaced.

        Raises:
            OSError: it can't be made.
        """
        directory, name = self._place(path)
        aside = self._open_aside()
        _unlink(_ASIDE, aside)
        os.symlink(target, _ASIDE, dir_fd=aside)
        try:
            os.replace(_ASIDE, name, src_dir_fd=aside, dst_dir_fd=directory)
        except IsADirectoryError:
            self._clear(directory, name)
            os.replace(_ASIDE, name, src_dir_fd=aside, dst_dir_fd=directory)

    def target(self, path: str) -> str | None:
        """Return where a symbolic link leads, None when there is no such link."""
        try:
            directory, name = self._place(path, make=False)
            return os.readlink(name, dir_fd=directory)
        except OSError:
            return None

    def read(self, path: str) -> str | None:
        """Return the text of a file, None when there is no such regular file."""
        try:
            directory, name = self._place(path, make=False)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return os.read(descriptor, _LONGEST).decode("utf-8", "replace")
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def mode(self, path: str) -> int | None:
        """Return the permissions of a file, None when there is no such regular file."""
        try:
            directory, name = self._place(path, make=False)
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return None
        return stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else None

    def remove(self, path: str) -> None:
        """Remove what has this name, with everything below it if it is a directory; links are not followed."""
        self.leave()
        try:
            directory, name = self._place(path, make=False)
        except OSError:
            return
        self._clear(directory, name)

    def names(self, path: str) -> list[tuple[str, bool]]:
        """Return what is in a directory: names, and whether each is a directory itself; nothing if it is none."""
        try:
            directory = self._enter(path.split("/") if path else [], make=False)
            with os.scandir(directory) as entries:
                return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:
            return []

    def walk(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield everything below a directory, deepest first: paths, and whether each is a directory."""
        for name, is_directory in self.names(path):
            below = f"{path}/{name}"
            if is_directory:
                yield from self.walk(below)
            yield below, is_directory

    def directory(self, path: str) -> int:
        """Return a directory, made if it is missing, "" for the root; it stays this object's and open until the next call.

        Raises:
            OSError: it can't be opened.
        """
        return self._enter(path.split("/") if path else [], make=True)

    def leave(self) -> None:
        """Close the directories on the way to the last path, and trust nothing about them any more."""
        self._last = ""
        while self._way:
            os.close(self._way.pop()[1])

    def _place(self, path: str, *, make: bool = True) -> tuple[int, str]:
        above, _, name = path.rpartition("/")
        if above != self._last or not self._way:
            self._enter(above.split("/") if above else [], make=make)
            self._last = above
        return self._way[-1][1] if self._way else self.descriptor, name

    def _enter(self, way: list[str], *, make: bool) -> int:
        self._last = ""
        common = 0
        for (name, _), wanted in zip(self._way, way, strict=False):
            if name != wanted:
                break
            common += 1
        while len(self._way) > common:
            os.close(self._way.pop()[1])
        for name in way[common:]:
            above = self._way[-1][1] if self._way else self.descriptor
            self._way.append((name, self._step(above, name, make=make)))
        return self._way[-1][1] if self._way else self.descriptor

    def _step(self, above: int, name: str, *, make: bool) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=above)
        except OSError as error:
            if not make or error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                raise
            if error.errno != errno.ENOENT:
                _unlink(name, above)  # a link or a file in the place of a directory
        os.mkdir(name, _DIRECTORY_MODE, dir_fd=above)
        made = os.open(name, _DIRECTORY, dir_fd=above)
        if self._umask & _DIRECTORY_MODE:
            os.fchmod(made, _DIRECTORY_MODE)
        return made

    def _write_aside(self, text: str, mode: int) -> None:
        aside = self._open_aside()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(_ASIDE, flags, mode, dir_fd=aside)
        except FileExistsError:
            _unlink(_ASIDE, aside)
            descriptor = os.open(_ASIDE, flags, mode, dir_fd=aside)
        try:
            if mode & self._umask:
                os.fchmod(descriptor, mode)
            if text:
                os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _open_aside(self) -> int:
        if self._aside < 0:
            self._aside = self._step(self.descriptor, self._aside_name, make=True)
        return self._aside

    def _clear(self, above: int, name: str) -> None:
        try:
            directory = os.open(name, _DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            return
        except OSError:
            _unlink(name, above)
            return
        try:
            if os.fstat(directory).st_dev != os.fstat(self.descriptor).st_dev:
                return  # somebody mounted something here
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
            for below in names:
                self._clear(directory, below)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=above)


def _overwrite(directory: int, name: str, data: bytes, mode: int) -> bool:
    """Write over a file of ours of the same length and mode; return whether it is one."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        same = found.st_mode == stat.S_IFREG | mode and found.st_size == len(data)
        if not (same and found.st_nlink == 1 and found.st_uid == os.geteuid()):
            return False
        return os.pwrite(descriptor, data, 0) == len(data)
    finally:
        os.close(descriptor)


def _unlink(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
