"""How host and worker meet: one request and one reply in shared memory, and pipes to wake who sleeps.

Waking a process on another processor takes about ten microseconds, a call of a small operator takes one. So whoever
waits looks at the memory for some microseconds before it sleeps: the host only for operators that were quick last time,
the worker only when the last request came quickly too. Neither looks while nothing is called.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import select
import struct
import threading
import time

from neurontools.customop import abi

REQUEST_OFFSET = abi.Mailbox.request.offset
REPLY_OFFSET = abi.Mailbox.reply.offset
_LOOKING_NS = 25_000
_QUICK_NS = 15_000
_TURNS = range(16)
_PASS_OVER_MAX = 64
_SLICE_S = 0.05
_REQUESTED = abi.Mailbox.requested.offset // 4
_HOST_SLEEPS = abi.Mailbox.host_sleeps.offset // 4
_ACCEPTED = abi.Mailbox.accepted.offset // 4
_ANSWERED = abi.Mailbox.answered.offset // 4
_WORKER_SLEEPS = abi.Mailbox.worker_sleeps.offset // 4
_PLAIN = abi.Mailbox.plain.offset // 4
_NUMBER = struct.Struct("=Q")
_ELAPSED = REPLY_OFFSET + abi.Reply.elapsed_ns.offset
_WORDS_BYTES = abi.Mailbox.request.offset
# Python has no memory barriers. x86-64 needs none here but one, which `wait` makes up for; elsewhere every message goes
# with a system call.
_IN_ORDER = platform.machine() in {"x86_64", "AMD64"}


class WorkerGoneError(Exception):
    """The worker had ended before it took the request; a new one can do the work."""


class Mailbox:
    """The host's side; it is made before the worker, and given what the worker gets."""

    def __init__(self) -> None:
        self._wake_read, self._wake_fd = os.pipe2(os.O_CLOEXEC)
        self._woken_fd, self._woken_write = os.pipe2(os.O_CLOEXEC)
        self._fd = os.memfd_create("neuron-customop-mailbox", os.MFD_CLOEXEC)
        self._open = [self._wake_read, self._wake_fd, self._woken_fd, self._woken_write, self._fd]
        nbytes = ctypes.sizeof(abi.Mailbox)
        os.ftruncate(self._fd, nbytes)
        self.memory = mmap.mmap(self._fd, nbytes)
        self._words = memoryview(self.memory)[:_WORDS_BYTES].cast("I")
        self._poll = select.poll()
        self._poll.register(self._woken_fd, select.POLLIN)
        self._number = 0
        self._written = b""
        self._looks = _IN_ORDER and len(os.sched_getaffinity(0)) > 1
        self._in_vain = 0
        self._pass_over = 0
        self._held: threading.Event | None = None
        os.set_blocking(self._wake_fd, False)

    @property
    def worker_fds(self) -> tuple[int, int, int]:
        """What the worker gets: the pipe that wakes it, the pipe that it wakes us by, the memory."""
        return self._wake_read, self._woken_write, self._fd

    def keep_own_fds(self) -> None:
        """Close the worker's descriptors once it has them, so that its end is seen."""
        for fd in self.worker_fds:
            os.close(fd)
            self._open.remove(fd)

    def put(self, request: bytes) -> None:
        """Write a request, or the beginning of one; what is there already is not written again."""
        if request is not self._written:
            self.memory[REQUEST_OFFSET : REQUEST_OFFSET + len(request)] = request
            self._written = request

    def post(self) -> None:
        """Tell the worker that a request is in the memory.

        Raises:
            WorkerGoneError: there is none any more.
        """
        words = self._words
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        words[_HOST_SLEEPS] = 0
        words[_REQUESTED] = number
        if words[_WORKER_SLEEPS] or not self._looks:
            self._wake()

    def look(self) -> bool:
        """Look for the reply for some microseconds, less and less often when it does not come; whether it is there."""
        if not self._looks:
            return False
        if self._pass_over:
            self._pass_over -= 1
            return False
        words, number = self._words, self._number
        end = 0
        while True:
            for _ in _TURNS:
                if words[_ANSWERED] == number:
                    self._in_vain = 0
                    return True
            now = time.monotonic_ns()
            if end == 0:
                end = now + _LOOKING_NS
            elif now > end:
                self._in_vain += 1
                self._pass_over = min(1 << self._in_vain, _PASS_OVER_MAX)
                return False

    def wait(self, timeout_s: float) -> bool | None:
        """Sleep until the reply is there.

        Returns:
            True when it is, False when the worker ended without one, None when the time is up.

        Raises:
            WorkerGoneError: it ended before it took the request.
        """
        deadline = time.monotonic() + timeout_s
        words, number = self._words, self._number
        words[_HOST_SLEEPS] = 1
        while words[_ANSWERED] != number:
            if self._held is not None:
                self._held.set()
                threading.Event().wait()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            if not self._poll.poll(1000 * min(left_s, _SLICE_S)):
                # Whether the other one sleeps may have been read too early: wake it rather once more than never.
                if words[_WORKER_SLEEPS] and words[_ACCEPTED] != number:
                    self._wake()
            elif not os.read(self._woken_fd, 64) and words[_ANSWERED] != number:
                if words[_ACCEPTED] != number:
                    raise WorkerGoneError
                return False
        return True

    def hold(self) -> None:
        """Keep the thread that waits for a reply from coming back, at the interpreter's end.

        Python ends a daemon thread that wants to go on then, in the middle of torch's frames, which aborts the process.
        """
        self._held = threading.Event()
        self._held.wait(4 * _SLICE_S)

    @property
    def is_plain(self) -> bool:
        """Whether the reply says nothing but that the call succeeded, and what it did."""
        return self._words[_PLAIN] == 1

    @property
    def was_quick(self) -> bool:
        """Whether the call took less time than it takes to sleep and be woken."""
        elapsed_ns: int = _NUMBER.unpack_from(self.memory, _ELAPSED)[0]
        return elapsed_ns < _QUICK_NS

    def reply(self) -> abi.Reply:
        """Return a copy of the reply."""
        return abi.Reply.from_buffer_copy(self.memory, REPLY_OFFSET)

    def close(self) -> None:
        """Give the memory and the pipes back."""
        if not self.memory.closed:
            self._words.release()
            self.memory.close()
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def _wake(self) -> None:
        try:
            os.write(self._wake_fd, b"!")
        except BlockingIOError:
            return  # the pipe is full of them
        except BrokenPipeError:
            raise WorkerGoneError from None
