"""What neuron-ls writes to stderr where there is no device (system-tools.md section 1.2)."""

from __future__ import annotations


def no_devices_line() -> str:
    """Return the line, with the time of now."""
    import time

    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return (
        f'time="{now}" level=fatal msg="Failed to load MLA system information" '
        'error="failed to discover Neuron devices"\n'
    )
