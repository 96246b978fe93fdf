"""One worker process from start to end: descriptors, arena, messages."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.customop import abi
from neurontools.customop.arena import PAGE_BYTES, Staging, process_arena
from neurontools.customop.calls import (
    CAPTURES,
    FLAG,
    OUTPUT_PLACE,
    Buffer,
    Failure,
    Outcome,
    pack_place,
    parse_reply,
)
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.mailbox import Mailbox, WorkerGoneError
from neurontools.customop.package import executable_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.arena import Block
    from neurontools.customop.calls import PreparedCall
    from neurontools.customop.package import Parts

_FIRST_FD = 32  # above all descriptor numbers of the worker
_BACKTRACE_S = 1.0
_EXIT_S = 1.0  # a process closes its pipes a little before it has ended
_END_S = 5.0
_STDERR_BYTES = 4096
_SANITIZER_REPORT = "=" * 65  # its first line


class Session:
    """A running worker.

    Raises:
        CustomOpLibraryError: it cannot be started.
    """

    def __init__(self, parts: Parts, name: str, fresh_memory: int | None = None) -> None:
        self._open: list[int] = []
        self._fresh_memory = fresh_memory
        self.arena = process_arena()
        self.staging = Staging(self.arena, fresh_memory)
        self.mailbox = Mailbox()
        self._stdout = OutputCollector("neuron-customop-stdout")
        self._stderr = OutputCollector("neuron-customop-stderr")
        try:
            self._start(parts, name)
        except BaseException:
            self.release()
            raise

    def call(
        self,
        request: abi.CallRequest,
        inputs: dict[int, Buffer],
        output: Buffer | None,
        timeout_s: float,
        stdout_bytes: int,
    ) -> Outcome:
        """Send a request and wait for its outcome; after a `fatal` failure the session is unusable.

        Raises:
            WorkerGoneError: the worker ended before the call.
        """
        for slot, buffer in inputs.items():
            block = self.staging.write(slot, *buffer)
            request.places[slot] = abi.Place(block.offset, block.nbytes)
        if output is not None:
            block = self.staging.output(output.nbytes)
            request.places[abi.OUTPUT_SLOT] = abi.Place(block.offset, block.nbytes)
        request.capture_stdout = int(stdout_bytes > 0)
        self.mailbox.put(bytes(request))
        self.mailbox.post()
        end = self.mailbox.wait(timeout_s)
        alone = request.command == abi.RUN_COMMAND and request.core_count == 1
        outcome = self._outcome(end, timeout_s, stdout_bytes, request.core_count, alone=alone)
        if output is not None and outcome.failure is None:
            self.staging.read(abi.OUTPUT_SLOT, *output)
        return outcome

    def run(
        self,
        call: PreparedCall,
        addresses: Sequence[int],
        result: Callable[[Block | None], int],
        timeout_s: float,
        stdout_bytes: int,
    ) -> Outcome | None:
        """Run a prepared kernel call.

        If one of its tensors is in device memory, so is the output, unless device memory is full.

        Args:
            call: the prepared call.
            addresses: addresses of its tensors.
            result: creates the result, in a block if one is given, and returns its address. It is called while the
                kernel runs.
            timeout_s: maximum duration.
            stdout_bytes: maximum size of the captured output.

        Returns:
            The outcome; None if it succeeded without warnings and output.

        Raises:
            WorkerGoneError: the worker ended before the call.
        """
        mailbox = self.mailbox
        mailbox.put(call.packed)
        resident = self._place(call, addresses)
        output = self._place_output(call, resident=resident)
        FLAG.pack_into(mailbox.memory, CAPTURES, stdout_bytes > 0)
        mailbox.post()
        address = result(output)
        end = (call.is_quick and mailbox.poll()) or mailbox.wait(timeout_s)
        outcome = None
        if end and mailbox.is_plain:
            call.is_quick = mailbox.was_quick
        else:
            outcome = self._outcome(end, timeout_s, stdout_bytes, call.core_count, alone=call.core_count == 1)
        if output is None and (outcome is None or outcome.failure is None):
            self.staging.read(abi.OUTPUT_SLOT, address, call.output_bytes)
        return outcome

    def end(self) -> None:
        """End the worker with all processes that its kernels started, and wait until they are gone."""
        self._kill(signal.SIGTERM)
        self._kill(signal.SIGCONT)
        if not self._has_ended(_END_S):
            self._kill(signal.SIGKILL)
        self._reap()
        self.release()

    def _start(self, parts: Parts, name: str) -> None:
        shape = self._keep(executable_file(f"{name}-shape", parts.shape))
        kernel = self._keep(executable_file(f"{name}-kernel", parts.kernel))
        program = self._keep(executable_file("neuron-customop-worker", parts.worker))
        null = self._keep(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        wanted = (
            null,
            self._stdout.fd,
            self._stderr.fd,
            *self.mailbox.worker_fds,
            self.arena.fd,
            shape,
            kernel,
        )
        try:
            self.pid = os.posix_spawn(
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
        self._pidfd = self._keep(os.pidfd_open(self.pid))
        self.mailbox.worker_started(self._pidfd)
        for fd in [fd for fd in self._open if fd != self._pidfd]:
            os.close(fd)
            self._open.remove(fd)

    def _keep(self, fd: int) -> int:
        self._open.append(fd)
        return fd

    def _place(self, call: PreparedCall, addresses: Sequence[int]) -> bool:
        """Write the locations of the tensors, copying where needed; return whether one is in device memory."""
        base, size, memory = self.arena.base, self.arena.nbytes, self.mailbox.memory
        resident = False
        for (index, place, nbytes, may_stay), address in zip(call.tensors, addresses, strict=True):
            begin = address - base
            if 0 <= begin < size:
                resident = True
                end = begin + nbytes
                if may_stay and end % PAGE_BYTES == 0:
                    begin -= begin % PAGE_BYTES
                    pack_place(memory, place, begin, end - begin, 1)
                    continue
            block = self.staging.write(index, address, nbytes)
            pack_place(memory, place, block.offset, block.nbytes, 0)
        return resident

    def _place_output(self, call: PreparedCall, *, resident: bool) -> Block | None:
        """Write the location of the output; return the block of the result, None if the output must be copied."""
        kept = None
        if resident and call.output_bytes:
            with suppress(CustomOpLibraryError):  # device memory is full: the result is an ordinary tensor
                kept = self.arena.allocate(call.output_bytes, held=True)
                self.staging.freshen(kept)
        block = kept or self.staging.output(call.output_bytes)
        pack_place(self.mailbox.memory, OUTPUT_PLACE, block.offset, block.nbytes, 0)
        return kept

    def _outcome(
        self, end: bool | None, timeout_s: float, stdout_bytes: int, core_count: int, *, alone: bool
    ) -> Outcome:
        failure = self._interrupt(timeout_s) if end is None else None if end else self._exit_failure()
        stdout = self._stdout.take(stdout_bytes)
        stderr = self._stderr.take(_STDERR_BYTES)
        if failure is not None:
            if "runtime error: " in stderr:  # from the sanitizer, before it ended the worker
                failure, stderr = _undefined_behaviour(stderr), ""
            # The worker does not report the core; a single-core kernel runs on core 0.
            return Outcome(replace(failure, core=0) if alone else failure, stdout=stdout, stderr=stderr)
        if _SANITIZER_REPORT in stderr:  # the reply has it in one line
            stderr = ""
        return parse_reply(self.mailbox.reply(), core_count, stdout, stderr)

    def _interrupt(self, timeout_s: float) -> Failure:
        self._kill(signal.SIGUSR1)  # the worker replies with its backtrace
        where = None
        with suppress(WorkerGoneError):
            if self.mailbox.wait(_BACKTRACE_S):
                where = parse_reply(self.mailbox.reply(), 0).failure
        core, frames = (where.core, where.frames) if where else (-1, ())
        return Failure("timeout", f"no result after {timeout_s:g} s", core, frames, fatal=True)

    def _exit_failure(self) -> Failure:
        if not self._has_ended(_EXIT_S):
            message = "the kernel closed the worker's descriptors or executed another program"
            return Failure("worker", message, fatal=True)
        status = self._reap()
        if status < 0:
            message = f"the worker was killed by {_signal_name(-status)}"
        else:
            message = f"the worker exited with code {status}"
        return Failure("worker", message, fatal=True)

    def _kill(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _has_ended(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def _reap(self) -> int:
        """Return the exit code, negative for a signal; 0 if another part of the program has reaped the process."""
        try:
            found = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        except ChildProcessError:
            return 0
        assert found is not None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def release(self) -> None:
        """Release everything but the worker, as a forked child does."""
        for fd in self._open:
            with suppress(OSError):
                os.close(fd)
        self._open.clear()
        self._stdout.close()
        self._stderr.close()
        self.staging.close()
        self.mailbox.close()


class OutputCollector:
    """Collects the newest output that another process writes to a descriptor."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC)

    def take(self, limit_bytes: int) -> str:
        """Return the newest bytes as text and discard all."""
        size = os.fstat(self.fd).st_size
        if size == 0:
            return ""
        kept = min(size, limit_bytes)
        data = os.pread(self.fd, kept, size - kept)
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        return data.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _undefined_behaviour(stderr: str) -> Failure:
    line = next(line for line in stderr.splitlines() if "runtime error: " in line)
    place, _, message = line.partition(": runtime error: ")
    return Failure("sanitizer", f"{message} at {place.rpartition(':')[0]}", fatal=True)


def _above(fds: tuple[int, ...], keep: Callable[[int], int]) -> list[int]:
    """Return copies with high numbers, so duplicating onto low numbers overwrites none of them."""
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
    # A sanitizer or profiler that is preloaded into Python must not be loaded into the worker.
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if fresh_memory is not None:
        environ["MALLOC_PERTURB_"] = str(
            fresh_memory
        )  # makes malloc fill new memory, as the next variable does
        environ["ASAN_OPTIONS"] = f"malloc_fill_byte={fresh_memory}:max_malloc_fill_size={(1 << 31) - 1}"
    return environ


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
