"""Ownership of a mirror directory: it must be empty, or an unused mirror of the same machine.

`.neurontools-sysfs` in it marks a mirror: it names the machine, and its lock is held while the mirror is kept current.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

from neurontools.base.json_reader import load_json
from neurontools.base.locks import flock, is_same_file
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from typing import Self

MARK = ".neurontools-sysfs"
_IDENTITY, _LOCK = "mirror.json", "lock"
_KIND = "neurontools sysfs mirror"
_FORMAT = 1
_PRIVATE_DIRECTORY, _PRIVATE_FILE = 0o700, 0o600
_REMEDY = "choose an empty or a new directory"


class MirrorLostError(NeuronToolsError):
    """The directory was deleted or replaced while it was kept current."""


class MirrorLock:
    """The exclusive right to write the mirror of one machine into a directory.

    Args:
        path: the directory; made if it is missing.
        machine: the machine that is mirrored.

    Raises:
        NeuronToolsError: it is a link, another user's, neither empty nor a mirror, another machine's mirror, or kept
            current by another process.
    """

    def __init__(self, path: str, machine: str) -> None:
        self.path = path
        self.mark = f"{path}/{MARK}"
        _make_directory(path)
        identity = _read_identity(f"{self.mark}/{_IDENTITY}")
        if identity is None and not set(os.listdir(path)) <= {MARK}:
            raise NeuronToolsError(f"{path} is neither empty nor a sysfs mirror", _REMEDY)
        if identity is not None and identity.get("machine") != machine:
            raise NeuronToolsError(
                f"{path} is the mirror of machine {identity.get('machine')!r}", "choose another directory"
            )
        os.makedirs(self.mark, mode=_PRIVATE_DIRECTORY, exist_ok=True)
        self._descriptor = self._lock()
        self._directory = os.stat(path)
        if identity is None:
            self._write_identity(machine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def check(self) -> None:
        """Make sure that the directory is still at its path and still marked.

        Raises:
            MirrorLostError: it is not.
        """
        if not self._is_intact():
            raise MirrorLostError(f"{self.path} was deleted or replaced: the mirror stops", "export it again")

    def _is_intact(self) -> bool:
        try:
            same = os.path.samestat(os.lstat(self.path), self._directory)
            return same and is_same_file(f"{self.mark}/{_LOCK}", self._descriptor)
        except OSError:
            return False

    def _lock(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{self.mark}/{_LOCK}", flags, _PRIVATE_FILE)
        if not flock(descriptor, wait=False):
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise NeuronToolsError(
                f"{self.path} is kept current by another process{holder and f' (pid {holder})'}",
                "stop it, or choose another directory",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def _write_identity(self, machine: str) -> None:
        identity = {"kind": _KIND, "format": _FORMAT, "machine": machine, "uid": os.getuid()}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{self.mark}/{_IDENTITY}", flags, _PRIVATE_FILE)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(identity, file)


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        raise NeuronToolsError(f"cannot create {path}: {error.strerror}", _REMEDY) from error
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NeuronToolsError(f"cannot use {path}: it is a link or a file", _REMEDY)
    if found.st_uid != os.geteuid():
        raise NeuronToolsError(f"cannot use {path}: it belongs to uid {found.st_uid}", _REMEDY)


def _read_identity(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            identity = load_json(file.read())
    except (OSError, ValueError):
        return None
    return identity if isinstance(identity, dict) and identity.get("kind") == _KIND else None
