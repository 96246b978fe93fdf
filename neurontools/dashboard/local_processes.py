"""Processes of this host: their environment, and signals to them (never to another process with the same pid)."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

from neurontools.base.procfs import read_start_ticks
from neurontools.dashboard.process_table import user_name
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from neurontools.machine.snapshot import ProcessState

CHOICES = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGKILL,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGSTOP,
    signal.SIGCONT,
)
"""The signals that a dashboard offers, the usual one first."""

COVERED = "(covered)"
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|AUTH|COOKIE|SESSION_KEY", re.IGNORECASE
)
_FIRST = ("NEURON", "XLA", "FI_", "CCOM", "LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_")
_MOST_BYTES = 1 << 20


def rejection_reason(process: ProcessState, source: str) -> str:
    """Return why a process cannot be signalled, "" if it can be tried.

    Args:
        process: the process.
        source: where its snapshot comes from, as in `Snapshot.source`.
    """
    if process.origin != "live":
        return f"process {process.pid} is {process.origin}: it cannot receive signals"
    if source == "recording":
        return f"process {process.pid} is in a recording"
    try:
        os.kill(process.pid, 0)  # sends nothing
    except PermissionError:
        return _not_yours(process.pid, user_name(process.uid))
    except ProcessLookupError:
        return f"process {process.pid} is gone"
    return ""


def send_signal(pid: int, started_ticks: int, number: signal.Signals) -> None:
    """Send a signal to one process.

    A pidfd is opened before the start time is compared, so that the pid cannot be reused in between.

    Args:
        pid: its pid.
        started_ticks: its start time, in clock ticks since boot.
        number: the signal.

    Raises:
        NeuronToolsError: it is gone, its pid was reused, or signals are not permitted.
    """
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        raise NeuronToolsError(f"process {pid} is gone", "") from None
    except OSError as error:
        raise NeuronToolsError(f"cannot open process {pid}: {error.strerror}", "") from error
    try:
        if read_start_ticks(pid) != started_ticks:
            raise NeuronToolsError(f"process {pid} is gone; its pid belongs to another process now", "")
        signal.pidfd_send_signal(held, number)
    except PermissionError:
        raise NeuronToolsError(_not_yours(pid, "another user"), "run neuron-top as that user") from None
    except ProcessLookupError:
        raise NeuronToolsError(f"process {pid} is gone", "") from None
    finally:
        os.close(held)


def _not_yours(pid: int, owner: str) -> str:
    return f"process {pid} belongs to {owner}: {user_name(os.geteuid())} may not signal it"


def environment(pid: int, started_ticks: int) -> tuple[tuple[str, str], ...] | None:
    """Return the variables a process was started with, those about Neuron first, then by name.

    Args:
        pid: its pid.
        started_ticks: its start time, in clock ticks since boot.

    Returns:
        Names and values, values that look like secrets replaced; None when it is gone or may not be read.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return None
    if read_start_ticks(pid) != started_ticks:
        return None
    pairs = [item.decode("utf-8", "replace").partition("=") for item in data.split(b"\0") if item]
    found = ((name, COVERED if value and _SECRET.search(name) else value) for name, _, value in pairs)
    return tuple(sorted(found, key=lambda pair: (not pair[0].startswith(_FIRST), pair[0])))
