"""Sends from one worker to another: copies are sent in the background, so that all workers of a ring may send first."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_POLL_S = 0.005


class Outbox:
    """Sends tensors in the order of the calls.

    Args:
        connect: returns the gloo group; it waits for the other worker, which may not connect before it receives.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._queue: SimpleQueue[tuple[torch.Tensor, int, int]] = SimpleQueue()
        self._unsent = 0
        self._sending: list[tuple[Any, torch.Tensor]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def send(self, tensor: torch.Tensor, target: int, tag: int) -> None:
        """Send a copy of a tensor to the member at a position; does not wait.

        Raises:
            NrtError: an earlier tensor did not arrive.
        """
        if self._error is not None:
            raise self._error
        with self._lock:
            self._unsent += 1
        self._queue.put((tensor.clone(), target, tag))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="neurontools send", daemon=True)
            self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Wait until everything has arrived, a send has failed, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while self._error is None and not self._is_empty() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _is_empty(self) -> bool:
        with self._lock:
            return not self._unsent and all(work.is_completed() for work, _ in self._sending)

    def _run(self) -> None:
        try:
            gloo = self._connect()
            while True:
                kept, target, tag = self._queue.get()
                work = gloo.send([kept], target, tag)
                with self._lock:
                    self._sending = [pair for pair in self._sending if not pair[0].is_completed()]
                    self._sending.append((work, kept))
                    self._unsent -= 1
        except Exception as error:  # noqa: BLE001
            self._error = error
