"""Sections that signals do not end in the middle."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # its functions are not wrapped in Python
import _thread
import operator
import os
import signal
import threading
from _thread import get_ident
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

# Without the real-time signals, which take ten times as long to ask for.
_RELEASE = operator.methodcaller("release")
_SIGNALS = tuple(number for number in map(int, signal.valid_signals()) if number < signal.SIGRTMIN)


_INTERRUPT: Callable[[int], None] = _thread.interrupt_main  # type: ignore[assignment]

HOLD_S = 1.0
"""How long an interrupt waits for the end of usually short work: a request, an execution."""

_main_thread = threading.main_thread().ident
_current: InterruptHold | None = None
_last: tuple[list[object], dict[int, Callable[[int, FrameType | None], object]]] = [], {}


class InterruptHold:
    """Holds back the signals (but real-time ones) that functions of the program handle, Ctrl-C among them, until the end of the section.

    Their functions are called after it, and may raise there. A second signal of the same number takes effect at once.
    Only Python's main thread runs such functions: in other threads this does nothing. Nor does it within another
    section that holds them for as long.

    Args:
        limit_s: how long a signal is held back at most.
    """

    __slots__ = ("_handlers", "_is_ending", "_is_held", "_outer", "_pending", "_thread", "_timers", "limit_s")

    _handlers: dict[int, Callable[[int, FrameType | None], object]]
    _is_ending: bool
    _outer: InterruptHold | None
    _pending: list[int]
    _thread: int
    _timers: list[threading.Lock]

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self._is_held = False

    def __enter__(self) -> Self:
        self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_held:
            self.end()
            _do_nothing()  # a call, after which what was held back takes effect

    def end(self) -> None:
        """End the section; what was held back takes effect at the next call."""
        global _current  # noqa: PLW0603  what is held belongs to the process
        if not self._is_held:
            return
        handlers = self._handlers
        restored = map(_signal.signal, handlers, handlers.values())
        released = map(_RELEASE, self._timers)
        repeated = map(_INTERRUPT, self._pending)
        # Without a call from here on: Python runs handlers after calls and at the start of functions, nowhere else.
        self._is_ending = True
        try:
            [*restored, *released, *repeated]  # noqa: B018
        except BaseException:  # of a signal that came after its function was back and before all others were
            for number, handler in handlers.items():
                _signal.signal(number, handler)
            raise
        finally:
            self._is_held = self._is_ending = False
            _current = self._outer

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Deliver what was held back, and do not hold signals inside the block."""
        is_held = self._is_held
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            if is_held:
                self._hold()

    def _hold(self) -> None:
        global _current
        thread = get_ident()
        if thread != _main_thread:
            return
        outer = _current
        if outer is not None and (outer.limit_s is None or self.limit_s is not None):
            return
        handlers = _handled()
        if not handlers:
            return
        note = self._note
        self._pending, self._timers, self._is_ending = [], [], False
        self._outer, self._handlers, self._thread = outer, handlers, thread
        self._is_held, _current = True, self
        try:
            for number in handlers:
                _signal.signal(number, note)
        except BaseException:
            self.end()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._is_held:  # code in the section has kept this function and put it back later
            self._handlers[number](number, frame)
            return
        if self._is_ending or number not in self._pending:
            self._pending.append(number)
            if self.limit_s is not None and not self._is_ending:
                timer = threading.Lock()
                timer.acquire()
                self._timers.append(timer)
                _thread.start_new_thread(self._insist, (timer, number))
            return
        self._pending.remove(number)
        handler = self._handlers[number]
        self.end()
        handler(number, frame)
        self._hold()

    def leave_to_parent(self) -> None:
        """End the section in a child that another thread has forked."""
        if self._thread != get_ident():
            self._pending.clear()
            self._timers.clear()
            self.end()

    def _insist(self, timer: threading.Lock, number: int) -> None:
        if not timer.acquire(timeout=self.limit_s or 0.0):
            # A real signal, which ends a wait in the kernel, too.
            signal.pthread_kill(threading.main_thread().ident or 0, number)


def _handled() -> dict[int, Callable[[int, FrameType | None], object]]:
    """Return the functions of the program by the number of the signal that they handle."""
    global _last  # noqa: PLW0603  a comparison is quicker than to look for functions
    found = [*map(_signal.getsignal, _SIGNALS)]
    if found != _last[0]:
        numbered = zip(_SIGNALS, found, strict=True)
        _last = found, {number: handler for number, handler in numbered if callable(handler)}
    return _last[1]


def is_of_handler(error: BaseException) -> bool:
    """Return whether the function of the program that handles a signal raised an exception, and not the code it came in.

    A handler may raise the errors of system calls: TimeoutError is what the handler of an alarm raises.
    """
    codes = {code for handler in _handled().values() if (code := _code_of(handler)) is not None}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def _code_of(handler: object) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    own = getattr(handler, "__code__", None)
    return own or getattr(type(handler).__call__, "__code__", None)


def _do_nothing() -> None:
    """Give signal handlers an occasion to run."""


def _forget_in_child() -> None:
    global _main_thread  # noqa: PLW0603  the thread that forked is the main one of the child
    _main_thread = get_ident()
    if _current is not None:
        _current.leave_to_parent()


os.register_at_fork(after_in_child=_forget_in_child)
