"""Reads a source in a thread of its own, from the program's start on: what comes before the app runs waits for it."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.tui.top.source import MachineUpdate, SeveralSource, Update, UpdateSource


class SourceEnd(NamedTuple):
    """The end of a source; `error` is the bug that ended it, None at the end of a recording."""

    error: Exception | None = None


Item: TypeAlias = "Update | MachineUpdate | SourceEnd"


class UpdateReader:
    """The updates of a source, and its end.

    Args:
        source: read once `start` or `follow` is called.
    """

    def __init__(self, source: UpdateSource | SeveralSource) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._pass_on: Callable[[Item], None] = self._keep
        self._is_started = False

    def start(self) -> None:
        """Begin to read, once."""
        if not self._is_started:
            self._is_started = True
            # Not a Textual worker: the interpreter would wait for a thread blocked in a read.
            threading.Thread(target=self._read, name="neuron-top source", daemon=True).start()

    def first(self, seconds: float) -> Item | None:
        """Return the first item, which stays for `follow`; None if none comes in time.

        Args:
            seconds: how long to wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, seconds)
            return self._waiting[0] if self._waiting else None

    def follow(self, pass_on: Callable[[Item], None]) -> Sequence[Item]:
        """Return the items so far; later ones are passed on, in the reading thread."""
        with self._changed:
            self._pass_on = pass_on
            waiting = tuple(self._waiting)
            self._waiting.clear()
        self.start()
        return waiting

    def _keep(self, item: Item) -> None:
        self._waiting.append(item)
        self._changed.notify_all()

    def _take(self, item: Item) -> None:
        with self._changed:
            self._pass_on(item)

    def _read(self) -> None:
        try:
            for update in self._source.updates():
                self._take(update)
        except Exception as error:  # noqa: BLE001  a bug in a source must end the app, not only this thread
            self._take(SourceEnd(error))
        else:
            self._take(SourceEnd())
