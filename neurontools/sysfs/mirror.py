"""The mirror of a machine's sysfs tree: files in a directory that are brought up to date with snapshots.

The directory must be empty, or an unused mirror of the same machine: the file `.neurontools-sysfs` in it marks a mirror.
It names the machine, and is locked while the mirror is kept current.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from neurontools.base.locks import flock, is_same_file
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.sysfs.aggregates import BaselineReader, CounterBaseline, MemoryPeaks, PowerMeter
from neurontools.sysfs.layout import DriverRelease, emulated
from neurontools.sysfs.tree import DEVICES, Entry, SysfsTree, TreeFile, TreeLink, TreePart, part_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from neurontools.machine.snapshot import Snapshot

MARK = ".neurontools-sysfs"
_KIND = "neurontools sysfs mirror"
_REMEDY = "choose an empty or a new directory"

_TOP_DIRECTORIES = ("dev", "proc", "sys")
_DIRECTORY_MODE = 0o755


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
        others = [name for name in os.listdir(path) if not name.startswith(MARK)]
        try:
            self._descriptor = os.open(
                self.mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise NeuronToolsError(f"cannot use {self.mark}: {error.strerror}", _REMEDY) from error
        try:
            self._take(machine, is_empty=not others)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._directory = os.stat(path)

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
        try:
            is_intact = os.path.samestat(os.lstat(self.path), self._directory) and is_same_file(
                self.mark, self._descriptor
            )
        except OSError:
            is_intact = False
        if not is_intact:
            raise MirrorLostError(f"{self.path} was deleted or replaced: the mirror stops", "export it again")

    def _take(self, machine: str, *, is_empty: bool) -> None:
        kind, mirrored, holder = (
            os.read(self._descriptor, 1 << 12).decode("utf-8", "replace") + "\n\n\n"
        ).split("\n")[:3]
        if kind != _KIND and not is_empty:
            if not kind:
                os.unlink(self.mark)  # made just now
            raise NeuronToolsError(f"{self.path} is neither empty nor a sysfs mirror", _REMEDY)
        if kind == _KIND and mirrored != machine:
            raise NeuronToolsError(
                f"{self.path} is the mirror of machine {mirrored!r}", "choose another directory"
            )
        if not flock(self._descriptor, wait=False):
            raise NeuronToolsError(
                f"{self.path} is kept current by another process{(holder.isdecimal() and f' (pid {holder})') or ''}",
                "stop it, or choose another directory",
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{_KIND}\n{machine}\n{os.getpid()}\n".encode(), 0)


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        raise NeuronToolsError(f"cannot create {path}: {error.strerror}", _REMEDY) from error
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise NeuronToolsError(f"cannot use {path}: it is a link or a file", _REMEDY)
    if status.st_uid != os.geteuid():
        raise NeuronToolsError(f"cannot use {path}: it belongs to uid {status.st_uid}", _REMEDY)


class SysfsMirror:
    """The tree of one machine in a directory. Everything below its `sys`, `proc` and `dev` is the mirror's.

    Args:
        path: the directory; empty, or a mirror of this machine.
        machine: the machine's name.
        driver: the driver whose tree it is, None for the one of NEURONTOOLS_EMULATE.
        programs: links beside the tree.
        devices: numbers of the devices that have files, None for all; the others have an empty directory.

    Raises:
        NeuronToolsError: the directory can't be used; `MirrorLock` says when.
    """

    def __init__(
        self,
        path: str,
        machine: str,
        *,
        driver: DriverRelease | None = None,
        programs: Mapping[str, TreeLink] | None = None,
        devices: Iterable[int] | None = None,
    ) -> None:
        self._path = path
        self._driver = driver or emulated()
        self._programs = dict(programs or {})
        self._shown = None if devices is None else {f"{DEVICES}/neuron{index}" for index in devices}
        self._lock = MirrorLock(path, machine)
        self._baseline_reader = BaselineReader(machine)
        self._baseline: CounterBaseline | None = None
        self._peaks = MemoryPeaks()
        self._power = PowerMeter()
        self._tree: tuple[tuple[str, str, int, float], SysfsTree] | None = None
        self._entries: dict[str, Entry] = {}
        self._parts: dict[str, TreePart] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory; the files stay."""
        self._lock.close()

    def add_devices(self, devices: Iterable[int]) -> None:
        """Write the files of further devices from the next update on."""
        if self._shown is not None:
            self._shown.update(f"{DEVICES}/neuron{index}" for index in devices)

    @property
    def file_count(self) -> int:
        """How many files and links the tree has."""
        return len(self._entries)

    def check(self) -> None:
        """Make sure that the directory is still there.

        Raises:
            MirrorLostError: it was deleted or replaced.
        """
        self._lock.check()

    def update(self, snapshot: Snapshot) -> int:
        """Bring the files up to date.

        Returns:
            How many files were written.

        Raises:
            MirrorLostError: the directory was deleted or replaced.
            NeuronToolsError: a file can't be written.
        """
        self._lock.check()
        self._power.update(snapshot)
        try:
            return self._update(snapshot)
        except FileNotFoundError:
            self._parts, self._entries = {}, {}  # files were deleted: the next update writes all of them
            self._lock.check()
            return 0
        except OSError as error:
            self._parts, self._entries = {}, {}
            self._lock.check()
            raise NeuronToolsError(
                f"cannot write the mirror {self._path}: {error.strerror}",
                "free some space, or export to another directory",
            ) from error

    def _update(self, snapshot: Snapshot) -> int:
        tree = self._tree_of(snapshot)
        baseline = self._baseline_reader.read()
        parts = {part.directory: part for part in tree.parts(snapshot, baseline) if self._is_shown(part)}
        frame = {**tree.frame(snapshot), **self._programs}
        if baseline is not self._baseline:
            self._peaks.clear()
        same_files = parts.keys() == self._parts.keys() and frame.items() <= self._entries.items()
        if not same_files or baseline is not self._baseline:
            written = self._rebuild(frame, parts)
        else:
            changed: dict[str, Entry] = {}
            for directory, part in parts.items():
                if part is not self._parts[directory]:
                    changed.update(part_files(part, self._peaks, self._parts[directory]))
            changed = {path: entry for path, entry in changed.items() if self._entries[path] != entry}
            written = self._write(changed)
        self._parts, self._baseline = parts, baseline
        return written

    def _is_shown(self, part: TreePart) -> bool:
        directory = part.directory
        return self._shown is None or not self._shown.isdisjoint((directory, directory.rpartition("/")[0]))

    def _tree_of(self, snapshot: Snapshot) -> SysfsTree:
        identity = snapshot.instance_id, snapshot.instance_type, snapshot.lnc, snapshot.started_unix_s
        if self._tree is None or self._tree[0] != identity:
            self._peaks.clear()
            self._parts = {}
            self._tree = identity, SysfsTree(instance_type(snapshot.instance_type), self._driver, self._power)
        return self._tree[1]

    def _rebuild(self, frame: dict[str, Entry], parts: dict[str, TreePart]) -> int:
        entries = dict(frame)
        for part in parts.values():
            entries.update(part_files(part, self._peaks))
        entries = dict(sorted(entries.items()))
        directories = {directory for path in entries for directory in _parents(path)}
        self._remove_others(entries, directories)
        for directory in sorted(directories):
            path = f"{self._path}/{directory}"
            if not os.path.isdir(path):
                os.mkdir(path)
                os.chmod(path, _DIRECTORY_MODE)
        changed = {path: entry for path, entry in entries.items() if self._entries.get(path) != entry}
        self._entries = entries
        return self._write(changed)

    def _remove_others(self, entries: dict[str, Entry], directories: set[str]) -> None:
        for top in _TOP_DIRECTORIES:
            if os.path.islink(f"{self._path}/{top}"):
                os.unlink(f"{self._path}/{top}")
            for directory, names, files in os.walk(f"{self._path}/{top}", topdown=False):
                for name in (*names, *files):
                    path = f"{directory}/{name}"
                    is_directory = os.path.isdir(path) and not os.path.islink(path)
                    if os.path.relpath(path, self._path) not in (directories if is_directory else entries):
                        _remove(path)

    def _write(self, entries: dict[str, Entry]) -> int:
        aside = f"{self._lock.mark}.new"
        with suppress(FileNotFoundError):
            os.unlink(aside)  # left by a killed export
        for path, entry in entries.items():
            full_path = f"{self._path}/{path}"
            match entry:
                case TreeFile(text, mode):
                    _write_file(full_path, text.encode(), mode, aside)
                case TreeLink(target):
                    os.symlink(target, aside)
                    _replace(aside, full_path)
        self._entries.update(entries)
        return len(entries)


def _write_file(path: str, data: bytes, mode: int, aside: str) -> None:
    """Write a file so that no reader sees half of it.

    A text of the same length is written over the old one in one call, so that a reader who keeps the file open sees
    it (and because moving costs ext4 thirty times as much). Any other is written aside and moved into place.
    """
    if data and _overwrite(path, data, mode):
        return
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    _replace(aside, path)


def _overwrite(path: str, data: bytes, mode: int) -> bool:
    """Write over a regular file of the same length and mode; return whether it was one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if status.st_mode != stat.S_IFREG | mode or status.st_size != len(data) or status.st_nlink != 1:
            return False
        return os.pwrite(descriptor, data, 0) == len(data)
    finally:
        os.close(descriptor)


def _replace(aside: str, path: str) -> None:
    try:
        os.replace(aside, path)
    except IsADirectoryError:
        shutil.rmtree(path)
        os.replace(aside, path)


def _remove(path: str) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
    elif not os.path.ismount(path):
        shutil.rmtree(path)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
