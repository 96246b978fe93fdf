"""The lock of a recorder, and exceptions that come late: raised in callbacks of C code and in finalizers.

Python raises the exceptions of signal handlers after a call and at the start of a function, nowhere else. So the lock is
taken and released by access to an attribute, and a recorded call ends without a call: what a program sees is that the
operator has returned, or that it has not happened.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable


_ADD_PENDING_CALL = ctypes.pythonapi.Py_AddPendingCall
_ADD_PENDING_CALL.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_IS_TRUE = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)


class _LateErrors:
    """Raises the oldest exception that is due when Python asks whether it is true."""

    def __init__(self) -> None:
        self._due: deque[BaseException] = deque()

    def add(self, error: BaseException) -> None:
        """Keep an exception until Python asks."""
        self._due.append(error)

    def __bool__(self) -> bool:
        # Without one, a hook of the program has seen what Ctrl-C did.
        raise self._due.popleft() if self._due else KeyboardInterrupt


_errors = _LateErrors()


def raise_soon(error: BaseException) -> None:
    """Raise an exception in the main thread, between two operations of the program."""
    _errors.add(error)
    # In a thread, so that it takes effect when the current function of C has returned.
    _thread.start_new_thread(_ADD_PENDING_CALL, (_IS_TRUE, id(_errors)))


def keep(error: BaseException) -> bool:
    """Keep an exception for the pending call that C code makes of `address`; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return False
    _errors.add(error)
    return True


def address() -> int:
    """Return the address of an object that raises the exceptions that are kept, by way of PyObject_IsTrue."""
    return id(_errors)


def deliver_from(function: Any, *, at_once: bool = False, finalizes: bool = False) -> None:
    """Deliver the exceptions that signal handlers raise at the start of a function that Python calls from C code.

    Args:
        function: the callback or finalizer.
        at_once: whether its caller makes the pending call.
        finalizes: whether it is a finalizer: it is called again, and does what it has not done yet.
    """
    previous = sys.unraisablehook
    take = _errors.add if at_once else raise_soon

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        if unraisable.object is function and error is not None and not isinstance(error, NeuronToolsError):
            take(error)
            trace = error.__traceback__
            if finalizes and trace is not None:
                function(trace.tb_frame.f_locals["self"])
        else:
            previous(unraisable)

    sys.unraisablehook = hook


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
