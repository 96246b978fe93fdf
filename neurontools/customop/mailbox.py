"""Exchange of requests and replies with a worker: shared memory, and pipes to wake the side that sleeps.

Waking a process on another processor takes ten microseconds on one computer and fifty on another, a call of a small
operator takes one. The waiting side therefore polls the memory before it sleeps: the host only for operators that were
quick last time, the worker only if the last request came quickly too. Each side measures how long it takes to wake up,
and the other one polls long enough for that. Neither polls while nothing is called.
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
from neurontools.customop.arena import sealed_memory

REQUEST_OFFSET = abi.MailboxLayout.request.offset
REPLY_OFFSET = abi.MailboxLayout.reply.offset
_POLL_NS = 25_000
_QUICK_NS = 15_000
_WAKE_UP_MAX_NS = 100_000  # longer ones are those of a busy computer
_POLLS_PER_CLOCK = range(16)
_SKIPPED_POLLS_MAX = 64
_SLICE_S = 0.05
_REQUESTED = abi.MailboxLayout.requested.offset // 4
_HOST_SLEEPS = abi.MailboxLayout.host_sleeps.offset // 4
_HOST_WAKE_UP = abi.MailboxLayout.host_wake_up_ns.offset // 4
_WOKEN_NS = abi.MailboxLayout.woken_ns.offset
_ANSWERED_NS = abi.MailboxLayout.answered_ns.offset
_WORKER_WAKE_UP = abi.MailboxLayout.worker_wake_up_ns.offset // 4
_ACCEPTED = abi.MailboxLayout.accepted.offset // 4
_ANSWERED = abi.MailboxLayout.answered.offset // 4
_WORKER_SLEEPS = abi.MailboxLayout.worker_sleeps.offset // 4
_PLAIN = abi.MailboxLayout.plain.offset // 4
_NUMBER = struct.Struct("=Q")
_ELAPSED = REPLY_OFFSET + abi.Reply.elapsed_ns.offset
_WORDS_BYTES = abi.MailboxLayout.request.offset
# Python has no memory barriers. x86-64 needs only one here, which `wait` replaces; on other processors every message
# takes a system call.
_IN_ORDER = platform.machine() in {"x86_64", "AMD64"}


class WorkerGoneError(Exception):
    """The worker ended before it accepted the request; a new one can run it."""


class Mailbox:
    """The host's side, created before the worker."""

    def __init__(self) -> None:
        self._wake_read, self._wake_fd = os.pipe2(os.O_CLOEXEC)
        self._woken_fd, self._woken_write = os.pipe2(os.O_CLOEXEC)
        nbytes = ctypes.sizeof(abi.MailboxLayout)
        self._fd = sealed_memory("neuron-customop-mailbox", nbytes)
        self._open = [self._wake_read, self._wake_fd, self._woken_fd, self._woken_write, self._fd]
        self.memory = mmap.mmap(self._fd, nbytes)
        self._words = memoryview(self.memory)[:_WORDS_BYTES].cast("I")
        self._poll = select.poll()
        self._poll.register(self._woken_fd, select.POLLIN)
        self._number = 0
        self._written = b""
        self._can_poll = _IN_ORDER and len(os.sched_getaffinity(0)) > 1
        self._failed_polls = 0
        self._skipped_polls = 0
        self._woke = False
        self._parked: threading.Event | None = None
        os.set_blocking(self._wake_fd, False)

    @property
    def worker_fds(self) -> tuple[int, int, int]:
        """Descriptors for the worker: the pipe that wakes it, the pipe that wakes the host, the memory."""
        return self._wake_read, self._woken_write, self._fd

    def worker_started(self, pidfd: int) -> None:
        """Close the worker's descriptors, so its end is detected, and watch its process."""
        self._poll.register(pidfd, select.POLLIN)
        for fd in self.worker_fds:
            os.close(fd)
            self._open.remove(fd)

    def put(self, request: bytes) -> None:
        """Write a request, or the beginning of one, unless it is there already."""
        if request is not self._written:
            self.memory[REQUEST_OFFSET : REQUEST_OFFSET + len(request)] = request
            self._written = request

    def post(self) -> None:
        """Signal the worker that a request is in the memory.

        Raises:
            WorkerGoneError: the worker has ended.
        """
        words = self._words
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        words[_HOST_SLEEPS] = 0
        words[_REQUESTED] = number
        self._woke = bool(words[_WORKER_SLEEPS]) or not self._can_poll
        if self._woke:
            self._wake()

    def poll(self) -> bool:
        """Poll for the reply, as long as a wake-up may take; less often after failures. Return whether it is there."""
        if not self._can_poll:
            return False
        if self._skipped_polls:
            self._skipped_polls -= 1
            return False
        words, number = self._words, self._number
        end = 0
        while True:
            for _ in _POLLS_PER_CLOCK:
                if words[_ANSWERED] == number:
                    self._failed_polls = 0
                    return True
            os.sched_yield()  # the worker may need this processor
            now = time.monotonic_ns()
            if end == 0:
                end = now + _POLL_NS + (2 * words[_WORKER_WAKE_UP] if self._woke else 0)
            elif now > end:
                self._failed_polls += 1
                self._skipped_polls = min(1 << self._failed_polls, _SKIPPED_POLLS_MAX)
                return False

    def wait(self, timeout_s: float) -> bool | None:
        """Sleep until the reply is there.

        Returns:
            True if it is, False if the worker ended or closed its pipe without one, None at the timeout.

        Raises:
            WorkerGoneError: it ended before it accepted the request.
        """
        deadline = time.monotonic() + timeout_s
        words, number = self._words, self._number
        words[_HOST_SLEEPS] = 1
        slept = False
        while words[_ANSWERED] != number:
            if self._parked is not None:
                self._parked.set()
                threading.Event().wait()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            events = self._poll.poll(1000 * min(left_s, _SLICE_S))
            if not events:
                # The sleep flag may have been read too early: an additional wake-up is harmless.
                if words[_WORKER_SLEEPS] and words[_ACCEPTED] != number:
                    self._wake()
            elif (events[-1][0] != self._woken_fd or not os.read(self._woken_fd, 64)) and words[
                _ANSWERED
            ] != number:
                if words[_ACCEPTED] != number:
                    raise WorkerGoneError
                return False
            else:
                slept = True
        if slept:
            self._note_wake_up()
        return True

    def park_waiter(self) -> None:
        """Block the thread that waits for a reply for ever, at exit of the interpreter.

        Python would end the daemon thread inside torch's frames when it continues, which aborts the process.
        """
        self._parked = threading.Event()
        self._parked.wait(4 * _SLICE_S)

    @property
    def is_plain(self) -> bool:
        """Whether the call succeeded without warnings or a failure."""
        return self._words[_PLAIN] == 1

    @property
    def was_quick(self) -> bool:
        """Whether the call took less time than a sleep and a wake-up."""
        elapsed_ns: int = _NUMBER.unpack_from(self.memory, _ELAPSED)[0]
        return elapsed_ns < _QUICK_NS + self._words[_HOST_WAKE_UP]

    def reply(self) -> abi.Reply:
        """Return a copy of the reply."""
        return abi.Reply.from_buffer_copy(self.memory, REPLY_OFFSET)

    def close(self) -> None:
        """Release the memory and the pipes."""
        if not self.memory.closed:
            self._words.release()
            self.memory.close()
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def _note_wake_up(self) -> None:
        answered_ns: int = _NUMBER.unpack_from(self.memory, _ANSWERED_NS)[0]
        took_ns = min(time.monotonic_ns() - answered_ns, _WAKE_UP_MAX_NS)
        known_ns = self._words[_HOST_WAKE_UP]
        self._words[_HOST_WAKE_UP] = (3 * known_ns + took_ns) // 4 if known_ns else took_ns

    def _wake(self) -> None:
        _NUMBER.pack_into(self.memory, _WOKEN_NS, time.monotonic_ns())
        try:
            os.write(self._wake_fd, b"!")
        except BlockingIOError:
            return  # the pipe is full of wake-ups
        except BrokenPipeError:
            raise WorkerGoneError from None
