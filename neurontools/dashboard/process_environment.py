"""The environment of a process of this host, as far as this user may read it; what looks like a secret is covered."""

from __future__ import annotations

import re

from neurontools.machine.processes import start_ticks

COVERED = "(covered)"
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|AUTH|COOKIE|SESSION_KEY", re.IGNORECASE
)
_FIRST = ("NEURON", "XLA", "FI_", "CCOM", "LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_")
_MOST_BYTES = 1 << 20


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
    if start_ticks(pid) != started_ticks:
        return None
    pairs = [item.decode("utf-8", "replace").partition("=") for item in data.split(b"\0") if item]
    found = ((name, COVERED if value and _SECRET.search(name) else value) for name, _, value in pairs)
    return tuple(sorted(found, key=lambda pair: (not pair[0].startswith(_FIRST), pair[0])))
