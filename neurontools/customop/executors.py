"""Executors of a library: a worker process, restarted after faults and in forked children, or this process."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop import abi
from neurontools.customop.calls import Buffer, Failure, Outcome, parse_reply
from neurontools.customop.environment import call_limits
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.mailbox import WorkerGoneError
from neurontools.customop.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.arena import Block
    from neurontools.customop.calls import PreparedCall
    from neurontools.customop.package import Parts

_ATTEMPTS = 3
_workers: weakref.WeakSet[WorkerExecutor] = weakref.WeakSet()
_in_process: weakref.WeakSet[InProcessExecutor] = weakref.WeakSet()


class WorkerExecutor:
    """Runs a library's functions in a worker process, one call at a time; thread-safe.

    Args:
        parts: the library.
        name: a name for its memory files.
        fresh_memory: byte that fills memory before a kernel writes it, None to leave it as it is.
    """

    def __init__(self, parts: Parts, name: str, fresh_memory: int | None = None) -> None:
        self._parts = parts
        self._fresh_memory = fresh_memory
        self._name = name
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.restarts = 0
        _workers.add(self)

    @property
    def pid(self) -> int | None:
        """Process id of the guard that keeps the worker in a child; None if it is not running."""
        session = self._session
        return session.pid if session else None

    def call(self, request: abi.CallRequest, inputs: dict[int, Buffer], output: Buffer | None) -> Outcome:
        """Run a function in the worker, which is started if necessary.

        Raises:
            CustomOpLibraryError: no worker can be started, or device memory is full.
            UsageError: an environment variable is invalid.
        """
        outcome = self._run_exclusively(
            lambda session, timeout_s, stdout_bytes: session.call(
                request, inputs, output, timeout_s, stdout_bytes
            )
        )
        assert outcome is not None
        return outcome

    def run(
        self, call: PreparedCall, addresses: Sequence[int], result: Callable[[Block | None], int]
    ) -> Outcome | None:
        """Run a prepared call in the worker, as `Session.run` does. Raises the errors of `call`."""
        return self._run_exclusively(
            lambda session, timeout_s, stdout_bytes: session.run(
                call, addresses, result, timeout_s, stdout_bytes
            )
        )

    def close(self) -> None:
        """End the worker."""
        with self._lock:
            self._end()

    def _run_exclusively(self, step: Callable[[Session, float, int], Outcome | None]) -> Outcome | None:
        timeout_s, stdout_bytes = call_limits()
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    return self._attempt(step, timeout_s, stdout_bytes)
                except WorkerGoneError:
                    # It was killed while idle. It has no state, so a new one continues.
                    self._end()
            failure = Failure(
                "worker", f"{_ATTEMPTS} workers were killed before they accepted the call", fatal=True
            )
            return Outcome(failure)

    def leave(self) -> None:
        """End the worker at exit of the process, unless a daemon thread is calling it: then it ends with the process."""
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()
        elif self._session is not None:
            self._session.mailbox.park_waiter()

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
            # Interrupted: the worker may still be running the request.
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
        """Drop the worker of the parent process, in a forked child."""
        session, self._session = self._session, None
        self._lock = threading.Lock()
        if session is not None:
            session.release()


def _close_at_exit() -> None:
    for executor in list(_workers):
        executor.leave()


def _forget_all() -> None:
    executors: list[WorkerExecutor | InProcessExecutor] = [*_workers, *_in_process]
    for executor in executors:
        executor.forget()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_all)


class InProcessExecutor:
    """Runs a library's functions in this process, for debuggers: one call at a time, no guards, no time limit.

    Raises:
        CustomOpLibraryError: it cannot be loaded.
    """

    def __init__(self, parts: Parts, name: str) -> None:
        self._lock = threading.Lock()
        kernel = _load(parts.kernel, f"{name}-kernel")
        self._functions = {
            abi.SHAPE_COMMAND: _load(parts.shape, f"{name}-shape"),
            abi.RUN_COMMAND: kernel,
            abi.PLACES_COMMAND: kernel,
        }
        _in_process.add(self)

    def call(self, request: abi.CallRequest, inputs: dict[int, Buffer], output: Buffer | None) -> Outcome:
        """Run a function on the caller's memory."""
        for index, buffer in inputs.items():
            tensor = request.arguments[index].tensor
            tensor.data = tensor.const_data = buffer.address
        if output is not None:
            request.output.data = request.output.const_data = output.address
        reply = abi.Reply()
        with self._lock:
            start = time.monotonic_ns()
            self._functions[request.command](ctypes.byref(request), ctypes.byref(reply))
            reply.elapsed_ns = time.monotonic_ns() - start
        return parse_reply(reply, request.core_count)

    def close(self) -> None:
        """Do nothing: loaded code stays."""

    def forget(self) -> None:
        """Reset the lock in a forked child: a thread of the parent may hold it."""
        self._lock = threading.Lock()


def _load(contents: bytes, name: str) -> ctypes._NamedFuncPointer:
    # A named file, because debuggers read symbols from it. The name must be unique among all loaded libraries.
    directory = tempfile.mkdtemp(prefix="neuron-customop-")
    atexit.register(_remove, directory, os.getpid())
    path = Path(directory) / f"{name}.so"
    try:
        path.write_bytes(contents)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise CustomOpLibraryError(
            f"cannot load {name}: {error}", "rebuild it, or set TMPDIR to a directory that allows executables"
        ) from error
    function = library.neurontools_call
    function.restype = None
    return function


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(directory, ignore_errors=True)
