"""Whose a mirror directory is: it must be empty, or carry the mark of a mirror of the same machine that nobody keeps.

The mark is a directory that holds what the mirror is of, what happened to its numbers, and the file that is being
written. A lock on the mark is held as long as a mirror is kept current.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from neurontools.errors import NeuronToolsError
from neurontools.sysfs.folder import Folder
from neurontools.sysfs.history import History, history_from_json

if TYPE_CHECKING:
    from typing import Self

MARK = ".neurontools-sysfs"
_IDENTITY = f"{MARK}/mirror.json"
_HISTORY = f"{MARK}/history.json"
_LOCK = "lock"
_KIND = "neurontools sysfs mirror"
_FORMAT = 1
_PRIVATE = 0o600
_ADVICE = "give an empty directory, or one that does not exist"


class MirrorLostError(NeuronToolsError):
    """The directory was deleted or replaced while it was kept current."""


class Claim:
    """A directory that belongs to the mirror of one machine, locked.

    Args:
        path: the directory; made if it is missing.
        machine: the machine that is mirrored.

    Raises:
        NeuronToolsError: it is a link, somebody else's, neither empty nor a mirror, another machine's mirror, or kept
            current by another process.
    """

    def __init__(self, path: str, machine: str) -> None:
        self.path = path
        self._machine = machine
        self.folder = Folder(_open(path), MARK)
        self._lock = -1
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back. A second time does nothing."""
        self.folder.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def check(self) -> None:
        """Make sure that the directory is still the one at its path and still marked.

        Raises:
            MirrorLostError: it is not.
        """
        if not self.holds():
            raise MirrorLostError(f"{self.path} was deleted or replaced: the mirror ends", "export it again")

    def holds(self) -> bool:
        """Return whether the directory is still the one at its path and still marked."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
            mark = os.stat(f"{self.path}/{MARK}/{_LOCK}", follow_symlinks=False)
        except OSError:
            return False
        same = os.path.samestat(there, os.fstat(self.folder.descriptor))
        return same and os.path.samestat(mark, os.fstat(self._lock))

    def history(self) -> History:
        """Return what happened to the mirror's numbers so far."""
        text = self.folder.read(_HISTORY)
        if text is not None:
            try:
                return history_from_json(json.loads(text))
            except (KeyError, TypeError, ValueError, AttributeError):
                pass
        return History()

    def keep(self, history: History) -> None:
        """Write down what happened to the mirror's numbers."""
        self.folder.write(_HISTORY, json.dumps(history.to_json()), _PRIVATE)
        history.changed = False

    def _take(self) -> None:
        names = [name for name, _ in self.folder.names("")]
        identity = _identity(self.folder.read(_IDENTITY))
        if identity is None and names not in ([], [MARK]):
            raise NeuronToolsError(f"{self.path} is neither empty nor a mirror of ours", _ADVICE)
        if identity is not None and identity.get("machine") != self._machine:
            raise NeuronToolsError(
                f"{self.path} is the mirror of machine {identity.get('machine')!r}",
                "choose another directory",
            )
        mark = self.folder.directory(MARK)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open(_LOCK, flags, _PRIVATE, dir_fd=mark)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._lock, 32).decode("ascii", "replace").strip()
            raise NeuronToolsError(
                f"{self.path} is kept current by another process{holder and f' (pid {holder})'}",
                "stop it, or choose another directory",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        if identity is None:
            text = json.dumps(
                {"kind": _KIND, "format": _FORMAT, "machine": self._machine, "uid": os.getuid()}
            )
            self.folder.write(_IDENTITY, text, _PRIVATE)


def _open(path: str) -> int:
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        raise NeuronToolsError(f"cannot make {path}: {error.strerror}", _ADVICE) from error
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        reason = "it is a link or no directory" if not _is_directory(path) else error.strerror
        raise NeuronToolsError(f"cannot use {path}: {reason}", _ADVICE) from error
    owner = os.fstat(descriptor).st_uid
    if owner != os.geteuid():
        os.close(descriptor)
        raise NeuronToolsError(f"cannot use {path}: it belongs to uid {owner}", _ADVICE)
    return descriptor


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _identity(text: str | None) -> dict[str, Any] | None:
    try:
        identity = json.loads(text or "")
    except ValueError:
        return None
    return identity if isinstance(identity, dict) and identity.get("kind") == _KIND else None
