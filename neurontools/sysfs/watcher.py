"""Noticing what others do to the files of a mirror: by inotify, and by looking at some of the files at a time.

inotify tells of every write at the next look. What it misses (a race with our own update, a queue that ran over, a
limit of watches that is too low) is found by comparing a share of the files with what should be in them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from neurontools.sysfs.folder import Folder

_MODIFY, _MOVED_FROM, _MOVED_TO, _DELETE = 0x2, 0x40, 0x80, 0x200
_OVERFLOW, _IGNORED, _IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORIES = 0x01000000
_MASK = _MODIFY | _MOVED_FROM | _MOVED_TO | _DELETE | _ONLY_DIRECTORIES
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 18


class Changes:
    """What others did.

    `written` are the paths of files that were written or replaced, `removed` those of files that are gone. `lost` is
    set when a directory is gone or events were dropped: everything must be looked at.
    """

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.removed: set[str] = set()
        self.lost = False

    def then(self, later: Changes) -> None:
        """Add what happened later."""
        self.written = (self.written - later.removed) | later.written
        self.removed = (self.removed - later.written) | later.removed
        self.lost = self.lost or later.lost


class Watcher:
    """Watches directories for what others do in them."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1
        self._directories: dict[int, str] = {}
        self.complete = False

    def close(self) -> None:
        """Watch nothing more. A second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._directories.clear()

    def watch(self, folder: Folder, directories: Iterable[str]) -> None:
        """Watch these directories and no others; `complete` says whether the system allows that many."""
        self.close()
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.complete = self._descriptor >= 0
        for path in directories:
            if not self.complete:
                break
            name = f"/proc/self/fd/{folder.directory(path)}".encode()
            number = self._libc.inotify_add_watch(self._descriptor, name, _MASK)
            if number < 0:
                self.complete = False
            else:
                self._directories[number] = path
        if not self.complete:
            self.close()

    def changes(self, own: Collection[str] = ()) -> Changes:
        """Return what happened since the last call.

        Args:
            own: the files that this process wrote since then, each once. Called right after that, no event of another
                can have been merged with one of ours but for those within the same moment.
        """
        found = Changes()
        written: Counter[str] = Counter()
        while self._descriptor >= 0:
            try:
                data = os.read(self._descriptor, _BUFFER_BYTES)
            except BlockingIOError:
                break
            self._read(data, own, written, found)
        found.written = {path for path, times in written.items() if times > (path in own)}
        return found

    def _read(self, data: bytes, own: Collection[str], written: Counter[str], found: Changes) -> None:
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            name = data[at - length : at].rstrip(b"\0").decode("utf-8", "surrogateescape")
            path = f"{self._directories.get(number, '')}/{name}".lstrip("/")
            if mask & _IGNORED:
                self._directories.pop(number, None)
                found.lost = True
            elif mask & _OVERFLOW:
                found.lost = True
            elif mask & _IS_DIRECTORY:
                # One in the place of a file of ours is what we removed ourselves.
                found.lost = found.lost or path not in own
            elif mask & (_MODIFY | _MOVED_TO):
                written[path] += 1
                found.removed.discard(path)
            else:
                found.removed.add(path)
                del written[path]
