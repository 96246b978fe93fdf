"""The one open runtime of this process: closed at exit, let go of in a forked child."""

from __future__ import annotations

import atexit
import os
from typing import Protocol

from neurontools.runtime.status import NrtError, NrtStatus

FORKED = (
    "Cannot re-initialize Neuron runtime in forked subprocess. "
    "To use Neuron with multiprocessing, you must use the 'spawn' start method"
)


class OpenRuntime(Protocol):
    """What this module knows of a runtime."""

    def close(self) -> None:
        """Give everything back."""

    def abandon(self) -> None:
        """Let go without a word to the machine: the parent process goes on."""


class _Process:
    def __init__(self) -> None:
        self.runtime: OpenRuntime | None = None
        self.forked = False

    def close(self) -> None:
        if self.runtime is not None:
            self.runtime.close()

    def abandon(self) -> None:
        if self.runtime is not None:
            self.forked = True
            self.runtime.abandon()
            self.runtime = None


_process = _Process()
atexit.register(_process.close)
os.register_at_fork(after_in_child=_process.abandon)


def check_may_open() -> None:
    """Refuse a second runtime, and one in a forked child of a process that had one.

    Raises:
        NrtError: NRT_FAILURE.
    """
    if _process.forked:
        raise NrtError("nrt_init", NrtStatus.NRT_FAILURE, "start it with exec or spawn", detail=FORKED)
    if _process.runtime is not None:
        detail = "the runtime is open already in this process"
        raise NrtError("nrt_init", NrtStatus.NRT_FAILURE, "use that one, or close it first", detail=detail)


def current() -> OpenRuntime | None:
    """Return the process's open runtime."""
    return _process.runtime


def opened(runtime: OpenRuntime) -> None:
    """Remember the process's runtime."""
    _process.runtime = runtime


def closed(runtime: OpenRuntime) -> None:
    """Forget a runtime that was closed."""
    if _process.runtime is runtime:
        _process.runtime = None
