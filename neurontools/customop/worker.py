"""The isolated executor: a worker process per library and process, restarted after faults and in forked children."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING

from neurontools.customop.calls import Failure, Outcome
from neurontools.customop.mailbox import WorkerGoneError
from neurontools.customop.session import Session
from neurontools.customop.settings import call_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop import abi
    from neurontools.customop.arena import Block
    from neurontools.customop.calls import Buffer
    from neurontools.customop.package import Parts
    from neurontools.customop.prepared import PreparedCall

_ATTEMPTS = 3


class WorkerExecutor:
    """Runs a library's functions in a process of their own, one call at a time; any thread may call.

    Args:
        parts: the library.
        name: a name for its memory files.
        fresh_memory: what memory holds that a kernel did not write yet: a byte, None for whatever comes.
    """

    def __init__(self, parts: Parts, name: str, fresh_memory: int | None = None) -> None:
        self._parts = parts
        self._fresh_memory = fresh_memory
        self._name = name
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.restarts = 0
        _live.add(self)

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None when none runs."""
        session = self._session
        return session.pid if session else None

    def call(self, request: abi.Request, inputs: dict[int, Buffer], output: Buffer | None) -> Outcome:
        """Run a function in the worker; starts it when needed.

        Raises:
            CustomOpLibraryError: no worker can be started, or the tensors do not fit.
            UsageError: a setting of the environment makes no sense.
        """
        outcome = self._in_turn(
            lambda session, timeout_s, stdout_bytes: session.call(
                request, inputs, output, timeout_s, stdout_bytes
            )
        )
        assert outcome is not None
        return outcome

    def run(
        self, call: PreparedCall, addresses: Sequence[int], result: Callable[[Block | None], int]
    ) -> Outcome | None:
        """Run a prepared call in the worker; starts it when needed. Arguments and result are those of `Session.run`.

        Raises:
            CustomOpLibraryError: no worker can be started, or the tensors do not fit.
            UsageError: a setting of the environment makes no sense.
        """
        return self._in_turn(
            lambda session, timeout_s, stdout_bytes: session.run(
                call, addresses, result, timeout_s, stdout_bytes
            )
        )

    def close(self) -> None:
        """End the worker."""
        with self._lock:
            self._end()

    def _in_turn(self, step: Callable[[Session, float, int], Outcome | None]) -> Outcome | None:
        timeout_s, stdout_bytes = call_limits()
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    return self._attempt(step, timeout_s, stdout_bytes)
                except WorkerGoneError:
                    # Somebody ended it while it was idle: it has no state, so a new one does as well.
                    self._end()
            failure = Failure(
                "worker", f"{_ATTEMPTS} workers were ended before they took the call", fatal=True
            )
            return Outcome(failure)

    def leave(self) -> None:
        """End the worker at the end of the process; one that is in a call of a daemon thread ends with the process."""
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()
        elif self._session is not None:
            self._session.mailbox.hold()

    def _attempt(
        self,
        step: Callable[[Session, float, int], Outcome | None],
        timeout_s: float,
        stdout_bytes: int,
    ) -> Outcome | None:
        session = self._session
        if session is None or session.arena.retired:
            self._end()
            session = self._session = Session(self._parts, self._name, self._fresh_memory)
        try:
            outcome = step(session, timeout_s, stdout_bytes)
        except WorkerGoneError:
            raise
        except BaseException:
            # Interrupted in the middle: the worker may still be running the old request.
            self._end()
            raise
        if outcome is not None and outcome.failure is not None and outcome.failure.fatal:
            self._end()
            self.restarts += 1
        return outcome

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end()

    def forget(self) -> None:
        """Drop the worker of the parent process; for a forked child."""
        session, self._session = self._session, None
        self._lock = threading.Lock()
        if session is not None:
            session.abandon()


_live: weakref.WeakSet[WorkerExecutor] = weakref.WeakSet()


def _close_at_exit() -> None:
    for executor in list(_live):
        executor.leave()


def _forget_all() -> None:
    for executor in list(_live):
        executor.forget()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_all)
