"""One worker process from start to end: its descriptors, its arena, its messages."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.customop import abi
from neurontools.customop.arena import Arena
from neurontools.customop.calls import Buffer, Failure, Outcome, outcome_of
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.memfile import Collector, executable_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.customop.package import Parts

_FIRST_FD = 32  # above every number that the worker's descriptors get
_BACKTRACE_S = 1.0
_STDERR_BYTES = 4096
_SANITIZER_REPORT = "==ERROR: AddressSanitizer"


class WorkerGoneError(Exception):
    """The worker had ended before it got the request; a new one can do the work."""


class Session:
    """A running worker.

    Raises:
        CustomOpLibraryError: it cannot be started.
    """

    def __init__(self, parts: Parts, name: str, fresh_memory: int | None = None) -> None:
        self._open: list[int] = []
        self._fresh_memory = fresh_memory
        self.arena = Arena()
        self._stdout = Collector("neuron-customop-stdout")
        self._stderr = Collector("neuron-customop-stderr")
        try:
            self._start(parts, name)
        except BaseException:
            self._release()
            raise

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._pid

    def call(
        self,
        request: abi.Request,
        inputs: dict[int, Buffer],
        output: Buffer | None,
        timeout_s: float,
        stdout_bytes: int,
    ) -> Outcome:
        """Send a request and wait for its end; a failure that is `fatal` ends the session's usefulness.

        Raises:
            WorkerGoneError: the worker had ended before.
        """
        for slot, buffer in inputs.items():
            request.slot_bytes[slot] = self.arena.fit(slot, buffer.nbytes)
            self.arena.write(slot, *buffer)
        if output is not None:
            request.slot_bytes[abi.OUTPUT_SLOT] = self.arena.fit(abi.OUTPUT_SLOT, output.nbytes)
            if self._fresh_memory is not None:
                self.arena.fill(abi.OUTPUT_SLOT, output.nbytes, self._fresh_memory)
        request.capture_stdout = int(stdout_bytes > 0)
        self._send(request)
        data = self._receive(time.monotonic() + timeout_s)
        failure: Failure | None = None
        if data is None:
            failure = self._interrupt(timeout_s)
        elif len(data) < ctypes.sizeof(abi.Reply):
            failure = self._ending()
        printed = self._stdout.take(stdout_bytes)
        complained = self._stderr.take(_STDERR_BYTES)
        if failure is not None and "runtime error: " in complained:  # the last words of the sanitizer
            failure, complained = _undefined_behaviour(complained), ""
        if failure is not None or data is None:
            # The worker said nothing of the core; with one core there is no question.
            if failure is not None and request.command == abi.RUN_COMMAND and request.core_count == 1:
                failure = replace(failure, core=0)
            return Outcome(failure, printed=printed, complained=complained)
        if _SANITIZER_REPORT in complained:  # the reply says it in one line
            complained = ""
        outcome = outcome_of(abi.Reply.from_buffer_copy(data), request.core_count, printed, complained)
        if output is not None and outcome.failure is None:
            self.arena.read(abi.OUTPUT_SLOT, *output)
        return outcome

    def end(self) -> None:
        """End the worker and wait until it is gone."""
        self._kill(signal.SIGKILL)
        self._reap()
        self._release()

    def abandon(self) -> None:
        """Forget the worker without touching it: it belongs to the process that this one was forked from."""
        self._release()

    def _start(self, parts: Parts, name: str) -> None:
        request_read, self._requests = self._pipe()
        self._replies, reply_write = self._pipe()
        shape = self._keep(executable_file(f"{name}-shape", parts.shape))
        kernel = self._keep(executable_file(f"{name}-kernel", parts.kernel))
        program = self._keep(executable_file("neuron-customop-worker", parts.worker))
        null = self._keep(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        wanted = (
            null,
            self._stdout.fd,
            self._stderr.fd,
            request_read,
            reply_write,
            self.arena.fd,
            shape,
            kernel,
        )
        try:
            self._pid = os.posix_spawn(
                f"/proc/self/fd/{program}",
                ["neuron-customop-worker", "serve", str(os.getpid())],
                _environment(self._fresh_memory),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, high, low) for low, high in enumerate(_above(wanted, self._keep))
                ],
                setsigmask=(),
            )
        except OSError as error:
            raise CustomOpLibraryError(
                f"cannot start the custom operator worker: {error.strerror}"
            ) from error
        self._pidfd = self._keep(os.pidfd_open(self._pid))
        ours = {self._requests, self._replies, self._pidfd}
        for fd in [fd for fd in self._open if fd not in ours]:
            os.close(fd)
            self._open.remove(fd)

    def _pipe(self) -> tuple[int, int]:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._keep(reader)
        self._keep(writer)
        return reader, writer

    def _keep(self, fd: int) -> int:
        self._open.append(fd)
        return fd

    def _send(self, request: abi.Request) -> None:
        view = memoryview(request).cast("B")
        try:
            while view:
                view = view[os.write(self._requests, view) :]
        except BrokenPipeError:
            raise WorkerGoneError from None

    def _receive(self, deadline: float) -> bytes | None:
        """Return the reply, less of it when the worker ended, None when the time is up."""
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        size = ctypes.sizeof(abi.Reply)
        data = b""
        while len(data) < size:
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0 or not poll.poll(left_ms):
                return None
            piece = os.read(self._replies, size - len(data))
            if not piece:
                break
            data += piece
        return data

    def _interrupt(self, timeout_s: float) -> Failure:
        self._kill(signal.SIGUSR1)  # the worker answers with where it is
        data = self._receive(time.monotonic() + _BACKTRACE_S) or b""
        where = None
        if len(data) == ctypes.sizeof(abi.Reply):
            where = outcome_of(abi.Reply.from_buffer_copy(data), 0).failure
        core, frames = (where.core, where.frames) if where else (-1, ())
        return Failure("timeout", f"no end after {timeout_s:g} s", core, frames, fatal=True)

    def _ending(self) -> Failure:
        status = self._reap()
        if status < 0:
            message = f"the worker was ended by {_signal_name(-status)}"
        else:
            message = f"the worker ended with {status}"
        return Failure("worker", message, fatal=True)

    def _kill(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _reap(self) -> int:
        """Return the exit code, negative for a signal."""
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:
            return 0
        return os.waitstatus_to_exitcode(status)

    def _release(self) -> None:
        for fd in self._open:
            with suppress(OSError):
                os.close(fd)
        self._open.clear()
        self._stdout.close()
        self._stderr.close()
        self.arena.close()


def _undefined_behaviour(complained: str) -> Failure:
    line = next(line for line in complained.splitlines() if "runtime error: " in line)
    place, _, message = line.partition(": runtime error: ")
    return Failure("sanitizer", f"{message} at {place.rpartition(':')[0]}", fatal=True)


def _above(fds: tuple[int, ...], keep: Callable[[int], int]) -> list[int]:
    """Return copies with high numbers: duplicating onto low ones then overwrites none that is still needed."""
    copies = []
    for fd in fds:
        try:
            copies.append(keep(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise CustomOpLibraryError(
                "too few file descriptors for a custom operator", "raise ulimit -n"
            ) from error
    return copies


def _environment(fresh_memory: int | None) -> dict[str, str]:
    # A sanitizer or profiler that is preloaded into Python has no business in the worker.
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if fresh_memory is not None:
        environ["MALLOC_PERTURB_"] = str(fresh_memory)  # the C library's own way of filling what it hands out
    return environ


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
