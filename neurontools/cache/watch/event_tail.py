"""The events of a root as they come: what was appended since the last look, also when the file was put aside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.cache.events import event_of, events_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.events import Event

_MOST_BYTES = 1 << 20


class EventTail:
    """The events of this user in one root, from now on."""

    def __init__(self, root: str) -> None:
        self._path = events_path(root)
        self._inode, self._offset = _end_of(self._path)

    def new(self) -> Iterator[Event]:
        """Yield the events since the last call; half a line waits for its other half."""
        inode, size = _end_of(self._path)
        if inode != self._inode:
            old_inode, _ = _end_of(f"{self._path}.old")
            if old_inode == self._inode:
                yield from self._read(f"{self._path}.old")
            self._inode, self._offset = inode, 0
        if size > self._offset:
            yield from self._read(self._path)

    def _read(self, path: str) -> Iterator[Event]:
        try:
            with open(path, "rb") as file:
                file.seek(self._offset)
                while data := file.read(_MOST_BYTES):
                    whole = data[: data.rfind(b"\n") + 1]
                    if not whole:
                        return
                    self._offset += len(whole)
                    file.seek(self._offset)
                    for line in whole.decode("utf-8", "replace").splitlines(keepends=True):
                        event = event_of(line)
                        if event is not None:
                            yield event
        except OSError:
            return


def _end_of(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size
