"""The log of a daemon and the kernel log of a machine: writing the latter, and reading both as lines."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import NeuronToolsError
from neurontools.machine.directory import MachineDirectory
from neurontools.machine.machine_names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import TextIOWrapper

_POLL_PERIOD_S = 0.25
_KERNEL_LOG_BYTES = 1 << 20


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
            full = file.tell() > _KERNEL_LOG_BYTES
        if full:
            os.replace(self.path, f"{self.path}.1")


def lines(
    machine: str | None = None,
    *,
    follow: bool = False,
    kernel: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield the lines of a machine's current log file, without line ends.

    Args:
        machine: its name, None for NEURONTOOLS_MACHINE.
        follow: go on, across rotation, until the consumer stops.
        kernel: what a driver would write to the kernel log (`kernel_log`), instead of the daemon's own log; none is
            an empty one.
        pause: waits for some seconds before the log is looked at again.

    Raises:
        NeuronToolsError: there is no log, as no daemon ever ran under that name, or it is another user's.
    """
    directory = MachineDirectory(check_name(env.machine() if machine is None else machine))
    path = directory.kernel_log if kernel else directory.log
    file = _opened(path)
    if kernel and file is None and os.path.exists(directory.log):
        file = open(path if follow else os.devnull, "a+", encoding="utf-8")  # noqa: SIM115  closed below
    if file is None:
        raise NeuronToolsError(f"no log at {path}: no machine has run under that name", "neurond list")
    rest = ""
    while True:
        with file:
            while piece := _next(file, path, pause if follow else None):
                rest += piece
                if rest.endswith("\n"):
                    yield rest[:-1]
                    rest = ""
        if rest:
            yield rest
        following = _opened(path) if follow else None
        if following is None:
            return
        file = following


def _next(file: TextIOWrapper, path: str, pause: Callable[[float], None] | None) -> str:
    while True:
        replaced = not _is_at(file, path)
        if piece := file.readline():
            return piece
        if replaced or pause is None:
            return ""
        pause(_POLL_PERIOD_S)


def _opened(path: str) -> TextIOWrapper | None:
    try:
        return open(path, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise NeuronToolsError(
            f"cannot read {path}: {error.strerror}", "only the machine's owner may"
        ) from error


def _is_at(file: TextIOWrapper, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False
