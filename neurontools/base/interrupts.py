"""Sections that signals do not end in the middle."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # its functions are not wrapped in Python
import _thread
import operator
import signal
import threading
from collections import deque
from contextlib import contextmanager
from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

# Without the real-time signals, which take ten times as long to ask for.
_SIGNALS = tuple(number for number in map(int, signal.valid_signals()) if number < signal.SIGRTMIN)


_INTERRUPT: Callable[[int], None] = _thread.interrupt_main  # type: ignore[assignment]

HOLD_S = 1.0
"""How long an interrupt waits for the end of what is usually short: a request, an execution."""


class InterruptHold:
    """Holds back the signals (but real-time ones) that functions of the program handle, Ctrl-C among them, until the end of the section.

    Their functions are called after it, and may raise there. A second signal of the same number takes effect at once.
    Only Python's main thread runs such functions: in other threads this does nothing.

    Args:
        limit_s: how long a signal is held back at most.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._pending: list[int] = []
        self._timers: list[threading.Lock] = []
        self._is_held = False
        self._end: Callable[[], None] = _do_nothing

    def __enter__(self) -> Self:
        self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended  # noqa: B018
        _do_nothing()  # a call, after which what was held back takes effect

    # An attribute, since Python runs handlers after a call but not after access to an attribute: all handlers are back,
    # and those that are due run after the next call.
    ended = property(operator.methodcaller("_end"))

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
        if threading.get_ident() != threading.main_thread().ident:
            return
        found = zip(_SIGNALS, map(_signal.getsignal, _SIGNALS), strict=True)
        self._handlers = {number: handler for number, handler in found if callable(handler)}
        if not self._handlers:
            return
        note, self._pending, self._timers = self._note, [], []
        self._end = partial(
            deque(maxlen=0).extend,
            chain(
                map(partial(setattr, self, "_is_held"), (False,)),
                starmap(_signal.signal, self._handlers.items()),
                map(operator.methodcaller("release"), self._timers),
                map(_INTERRUPT, self._pending),
            ),
        )
        self._is_held = True
        try:
            for number in self._handlers:
                _signal.signal(number, note)
        except BaseException:
            self.ended  # noqa: B018
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._is_held or number in self._pending:
            self._pending[:] = [other for other in self._pending if other != number]
            self._handlers[number](number, frame)
            return
        self._pending.append(number)
        if self._limit_s is not None:
            timer = threading.Lock()
            timer.acquire()
            self._timers.append(timer)
            _thread.start_new_thread(self._insist, (timer, number))

    def _insist(self, timer: threading.Lock, number: int) -> None:
        if not timer.acquire(timeout=self._limit_s or 0.0):
            # A real signal, which ends a wait in the kernel, too.
            signal.pthread_kill(threading.main_thread().ident or 0, number)


def is_of_handler(error: BaseException) -> bool:
    """Return whether the function of the program that handles a signal raised an exception, and not the code it came in.

    A handler may raise the errors of system calls: TimeoutError is what the handler of an alarm raises.
    """
    handlers = filter(callable, map(_signal.getsignal, _SIGNALS))
    codes = {code for handler in handlers if (code := _code_of(handler)) is not None}
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
    """End a section that holds nothing."""
