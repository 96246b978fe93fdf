"""Sections that Ctrl-C does not end in the middle."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType


class InterruptHold:
    """Holds SIGINT back until the end of the section; a second one takes effect at once.

    Only Python's main thread gets KeyboardInterrupt: in other threads this does nothing.
    """

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._is_pending = False

    def __enter__(self) -> Self:
        self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deliver()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Deliver what was held back, and do not hold SIGINT inside the block."""
        is_held = self._handler is not None
        self._deliver()
        try:
            yield
        finally:
            if is_held:
                self._hold()

    def _hold(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)

    def _deliver(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None
        if self._is_pending:
            self._is_pending = False
            signal.raise_signal(signal.SIGINT)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending and self._handler is not None:
            self._handler(number, frame)
        self._is_pending = True
