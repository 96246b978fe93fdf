"""The lock of a recorder, and what an exception may leave half done under it.

Python raises the exceptions of signal handlers after a call and at the start of a function, nowhere else. So the lock is
taken and released by access to an attribute, and a recorded call ends without a call: what a program sees is that the
operator has returned, or that it has not happened.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

CALL = "call"
"""A call is being recorded: its inputs and results are not part of the recording yet."""

RECORDING = "recording"
"""The recorded operators run: the values that they change are lost if they do not finish."""

_Lock = type(threading.RLock())


class RecorderLock(_Lock):  # type: ignore[misc,valid-type]
    """A lock that may be taken again by the thread that has it.

    Args:
        settle: is called whenever a `with` statement has taken it.
    """

    taken = property(_Lock.acquire)
    released = property(_Lock.release)

    def __new__(cls, settle: Callable[[], None]) -> Self:  # noqa: ARG004
        """Return a lock: the base class takes no arguments."""
        lock: Self = super().__new__(cls)
        return lock

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle

    def __enter__(self) -> bool:
        self.taken  # noqa: B018
        try:
            self._settle()
        except BaseException:
            self.released  # noqa: B018
            raise
        return True
