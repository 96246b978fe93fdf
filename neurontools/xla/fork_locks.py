"""A fork waits until no other thread is inside of the engine.

The child has only the thread that forked. Locks of the others, and torch's lock of its random numbers, which graphs draw
from, would stay taken there forever: a worker of a DataLoader would hang when it seeds its random numbers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from neurontools.xla.recorder_lock import RecorderLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LONGEST_WAIT_S = 2.0  # a thread may wait for another worker, which may wait for the child


class Locked(Protocol):
    """The recorder of a device."""

    lock: RecorderLock

    def settle(self) -> None:
        """Clean up after an exception."""


class ForkLocks:
    """Takes locks before a fork and gives them back after it, in parent and child.

    Args:
        owners: returns the present recorders. A recorder that stays busy gets a new lock in the child, where it can only refuse.
    """

    def __init__(self, owners: Callable[[], Iterable[Locked]]) -> None:
        self._owners = owners
        self._held: list[Locked] = []
        os.register_at_fork(before=self._take, after_in_parent=self._release, after_in_child=self._renew)

    def _take(self) -> None:
        self._held = [owner for owner in self._owners() if owner.lock.acquire(timeout=_LONGEST_WAIT_S)]

    def _release(self) -> None:
        while self._held:
            self._held.pop().lock.release()

    def _renew(self) -> None:
        self._held.clear()
        for owner in self._owners():
            owner.lock = RecorderLock(owner.settle)
