"""Programs that draw on a terminal: what they cost while they run, and how soon they show something."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WIDTH, HEIGHT = 200, 60
_GIVE_UP_S = 30.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program took: share (0..1) of one CPU, seconds to its first paint, memory, bytes a second that it wrote."""

    cpu_share: float
    first_paint_s: float
    memory_mib: float
    written_bytes_s: float


class Terminal:
    """A program on a terminal of 200x60 that is read all the time."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._begin_s = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
            os.execve(
                command[0], list(command), {**environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            )
        self.written_bytes = 0

    def read(self, seconds: float) -> bytes:
        """Return what the program writes in so many seconds."""
        until, pieces = time.monotonic() + seconds, []
        while (left := until - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                pieces.append(self._some())
        return b"".join(pieces)

    def first_paint_s(self, shown: bytes) -> float:
        """Return how long it took from the start until a text was shown.

        Raises:
            RuntimeError: it is never shown.
        """
        return self.first_match_s(re.compile(re.escape(shown)))

    def first_match_s(self, pattern: re.Pattern[bytes]) -> float:
        """Return how long it took from the start until output that this call reads matched.

        Raises:
            RuntimeError: it never does.
        """
        seen = b""
        while time.monotonic() < self._begin_s + _GIVE_UP_S:
            if select.select([self._fd], [], [], 0.5)[0]:
                seen += self._some()
                if pattern.search(seen):
                    return time.monotonic() - self._begin_s
        raise RuntimeError(f"{pattern.pattern!r} is never shown; the end was {seen[-500:]!r}")

    def press(self, keys: str) -> None:
        """Type something."""
        os.write(self._fd, keys.encode())

    def close(self) -> None:
        """Kill the program."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)

    def _some(self) -> bytes:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError as error:
            raise RuntimeError("the program ended") from error
        self.written_bytes += len(data)
        return data


@contextmanager
def terminal(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a program on a terminal until the end of the block."""
    opened = Terminal(command, environ)
    try:
        yield opened
    finally:
        opened.close()


def cost(
    command: Sequence[str], environ: Mapping[str, str], shown: bytes, seconds: float, settle_s: float
) -> Cost:
    """Run a program on a terminal and measure it.

    Args:
        command: the program's path and its arguments.
        environ: its environment.
        shown: the text that its first paint has.
        seconds: how long to measure.
        settle_s: how long to wait before.
    """
    with terminal(command, environ) as running:
        first_s = running.first_paint_s(shown)
        running.read(settle_s)
        process = psutil.Process(running.pid)
        written, before_s, begin_s = running.written_bytes, cpu_s(running.pid), time.monotonic()
        running.read(seconds)
        used_s, took_s = cpu_s(running.pid) - before_s, time.monotonic() - begin_s
        memory = process.memory_full_info().pss / 2**20
        return Cost(used_s / took_s, first_s, memory, (running.written_bytes - written) / took_s)


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process that lives, to the nanosecond: what idles uses a tick or two."""
    clock = ctypes.c_int()
    if number := ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(number, os.strerror(number))
    return time.clock_gettime(clock.value)
