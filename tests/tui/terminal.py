"""A program in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

LEAVE_SCREEN = b"\x1b[?1049l"
_PATIENCE_S = 30.0
SIZE_AND_COLOUR = {"NO_COLOR", "COLUMNS", "LINES"}


def read_to_end(master: int) -> bytes:
    """Read what was written to a pseudo-terminal until its last writer closes it."""
    pieces = []
    with suppress(OSError):  # the end reads as an error
        while piece := os.read(master, 1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


def read_through(master: int, data: bytes) -> bytes:
    """Read until so much came; a pseudo-terminal hands over what was written in pieces, some of them later.

    Raises:
        AssertionError: it never came.
    """
    seen = b""
    while data not in seen:
        assert select.select([master], [], [], _PATIENCE_S)[0], f"{data!r} never came, only {seen!r}"
        seen += os.read(master, 1 << 16)
    return seen


class Terminal:
    """neuron-top, or another program, in a pseudo-terminal, which controls it (signals it when it is closed) or not."""

    def __init__(
        self,
        *arguments: str,
        size: tuple[int, int] = (120, 40),
        controls: bool = True,
        program: str = "neuron-top",
        **environ: str,
    ) -> None:
        self._master, slave = pty.openpty()
        control = (lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controls else None
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        command = [str(Path(sys.executable).parent / program), *arguments]
        environment = {key: value for key, value in os.environ.items() if key not in SIZE_AND_COLOUR}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, **environ},
            start_new_session=True,
            preexec_fn=control,  # noqa: PLW1509  one thread
        )
        self.output = b""

    def read_until(self, text: str) -> str:
        """Read until the text (escape sequences taken out) was written since the last call; fails after a while."""
        end = time.monotonic() + _PATIENCE_S
        start = len(self.output)
        while text not in (seen := plain(self.output[start:])):
            if time.monotonic() > end or not self._read_some():
                raise AssertionError(f"{text!r} never came, only {seen[-2000:]!r}")
        return seen

    def read_until_bytes(self, data: bytes) -> None:
        """Read until so much was ever written."""
        while data not in self.output:
            assert self._read_some(), self.output[-2000:]

    def has_stopped(self) -> bool:
        """Read until the process has stopped: it cannot while its output has nowhere to go."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            self._read_some(0.05)
            if os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG) is not None:
                self.drain()  # what it wrote right before
                return True
        return False

    def drain(self) -> None:
        """Read what was written so far."""
        while self._read_some(0.0):
            continue

    def press(self, keys: str) -> None:
        self.send(keys.encode())

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def send(self, data: bytes) -> None:
        os.write(self._master, data)

    def quit(self, keys: str = "q", code: int = 0) -> None:
        """Press keys that end the program, and assert its exit code and a terminal as it was."""
        self.press(keys)
        assert self.exit_code() == code
        assert self.is_restored()

    def exit_code(self) -> int:
        """Read to the end and return the exit code."""
        end = time.monotonic() + _PATIENCE_S
        while self.process.poll() is None and time.monotonic() < end:
            self._read_some(0.1)
        while self._read_some(0.1):
            continue
        return self.process.wait(timeout=1)

    def is_restored(self) -> bool:
        return LEAVE_SCREEN in self.output and termios.tcgetattr(self.slave) == self.before

    def hang_up(self) -> None:
        """Take the terminal away, as when its window is closed."""
        os.close(self.slave)
        os.close(self._master)
        self._master, self.slave = pty.openpty()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self.slave)

    def _read_some(self, patience_s: float = _PATIENCE_S) -> bool:
        if not select.select([self._master], [], [], patience_s)[0]:
            return False
        self.output += os.read(self._master, 1 << 16)
        return True


def plain(output: bytes) -> str:
    return re.sub(r"\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78M])", "", output.decode(errors="replace"))
