"""The kernel log of a machine: what a driver would say in dmesg, in a file, for programs that look for it there."""

from __future__ import annotations

import os
import time

_MAX_BYTES = 1 << 20


class KernelLog:
    """Writes lines in the shape of dmesg: seconds since boot in brackets, then the text.

    The file is kept below a MiB: a full one is renamed to `<path>.1`.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, text: str) -> None:
        """Append a line.

        Raises:
            OSError: the file can't be written.
        """
        seconds, rest_ns = divmod(time.clock_gettime_ns(time.CLOCK_BOOTTIME), 1_000_000_000)
        line = f"[{seconds:5d}.{rest_ns // 1000:06d}] {text}\n"
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line)
            full = file.tell() > _MAX_BYTES
        if full:
            os.replace(self.path, f"{self.path}.1")
