"""The real runtime's environment variables that concern custom operators (customops.md section 8)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXEC_TIMEOUT = "NEURON_RT_EXEC_TIMEOUT"
STDOUT_QUEUE = "NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES"
DEFAULT_TIMEOUT_S = 600.0
# Reading `os.environ` takes longer than the rest of a small operator's call: it encodes and decodes. This is what it reads.
_RAW: Mapping[bytes, bytes] | None = getattr(os.environ, "_data", None)
_NAMES = (os.fsencode(EXEC_TIMEOUT), os.fsencode(STDOUT_QUEUE))
MAX_STDOUT_QUEUE_BYTES = 131072


def execution_timeout_s(environ: Mapping[str, str] | None = None) -> float:
    """Return how long an execution may take, in seconds.

    Raises:
        UsageError: the variable is not a positive number.
    """
    text = (os.environ if environ is None else environ).get(EXEC_TIMEOUT, "").strip()
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UsageError(f"{EXEC_TIMEOUT}={text} is not a number of seconds above 0", "unset it for 600")
    return seconds


def stdout_queue_bytes(environ: Mapping[str, str] | None = None) -> int:
    """Return how much of what kernels print is kept, 0 when nothing is.

    Raises:
        UsageError: the variable is not a power of two up to 131072.
    """
    text = (os.environ if environ is None else environ).get(STDOUT_QUEUE, "").strip()
    if text in {"", "0"}:
        return 0
    size = int(text) if text.isdigit() else 0
    if size == 0 or size & (size - 1) or size > MAX_STDOUT_QUEUE_BYTES:
        raise UsageError(
            f"{STDOUT_QUEUE}={text} is not a power of two up to {MAX_STDOUT_QUEUE_BYTES}",
            "unset it to drop output",
        )
    return size


def call_limits() -> tuple[float, int]:
    """Return the time that a call may take in seconds, and how much of what it prints is kept in bytes.

    Raises:
        UsageError: one of the variables makes no sense.
    """
    if _RAW is not None and _NAMES[0] not in _RAW and _NAMES[1] not in _RAW:
        return DEFAULT_TIMEOUT_S, 0
    return execution_timeout_s(), stdout_queue_bytes()
