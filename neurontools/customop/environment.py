"""What custom operators depend on: environment variables of the Neuron runtime, and a machine with NeuronCore-v2.

Source: AWS Neuron documentation, "Neuron Custom C++ Operators" and "Neuron Runtime Configuration".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.customop.errors import UnsupportedInstanceError
from neurontools.errors import NoMachineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXEC_TIMEOUT = "NEURON_RT_EXEC_TIMEOUT"
STDOUT_QUEUE = "NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES"
DEFAULT_TIMEOUT_S = 600.0
# `os.environ` encodes and decodes, which takes longer than the call of a small operator. This is its raw mapping.
_RAW: Mapping[bytes, bytes] | None = getattr(os.environ, "_data", None)
_NAMES = (os.fsencode(EXEC_TIMEOUT), os.fsencode(STDOUT_QUEUE))
MAX_STDOUT_QUEUE_BYTES = 131072
CORE = "NeuronCore-v2"
_FAMILIES = frozenset({"trn1", "trn1n", "inf2"})


def execution_timeout_s() -> float:
    """Return the maximum duration of an execution in seconds.

    Raises:
        UsageError: the variable is not a positive number.
    """
    text = os.environ.get(EXEC_TIMEOUT, "").strip()
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UsageError(
            f"invalid {EXEC_TIMEOUT}={text}: must be a number of seconds above 0", "unset it for 600"
        )
    return seconds


def stdout_queue_bytes() -> int:
    """Return the maximum size of captured kernel output, 0 if none is captured.

    Raises:
        UsageError: the variable is not a power of two up to 131072.
    """
    text = os.environ.get(STDOUT_QUEUE, "").strip()
    if text in {"", "0"}:
        return 0
    size = int(text) if text.isdigit() else 0
    if size == 0 or size & (size - 1) or size > MAX_STDOUT_QUEUE_BYTES:
        raise UsageError(
            f"invalid {STDOUT_QUEUE}={text}: must be a power of two up to {MAX_STDOUT_QUEUE_BYTES}",
            "unset it to discard output",
        )
    return size


def call_limits() -> tuple[float, int]:
    """Return the maximum duration of a call in seconds and the maximum size of its captured output in bytes.

    Raises:
        UsageError: one of the variables is invalid.
    """
    if _RAW is not None and _NAMES[0] not in _RAW and _NAMES[1] not in _RAW:
        return DEFAULT_TIMEOUT_S, 0
    return execution_timeout_s(), stdout_queue_bytes()


def check_instance() -> None:
    """Check that the cores of this process's machine can run custom operators.

    Nothing is started: without a running machine, the configured instance type is checked.

    Raises:
        UnsupportedInstanceError: it has other cores, and NEURONTOOLS_CUSTOMOP_ANY_INSTANCE is not set.
        UnknownInstanceError: NEURONTOOLS_INSTANCE is not an instance type.
    """
    if env.flag(env.CUSTOMOP_ANY_INSTANCE):
        return
    from neurontools.machine import launch

    machine = env.machine()
    try:
        kind = launch.find(machine).instance_type
    except NoMachineError:
        kind = env.instance()
    if kind.partition(".")[0] in _FAMILIES:
        return
    # Imported late: reading the catalogue takes longer than loading a library.
    from neurontools.machine.instances.catalogue import instance_type

    core = instance_type(kind).device.core.name
    if core != CORE:
        raise UnsupportedInstanceError(
            f"custom operators need {CORE} (trn1, trn1n, inf2); machine {machine!r} is {kind} with {core}",
            f"choose another machine with {env.MACHINE} or {env.INSTANCE}, write an NKI kernel, or override with "
            f"--any-instance or {env.CUSTOMOP_ANY_INSTANCE}=1",
        )
