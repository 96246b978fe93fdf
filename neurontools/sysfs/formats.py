"""The texts of the driver's files (system-tools.md section 4). Pure: values in, text with its line end out."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAJOR = 246
"""Of the character devices: the kernel gives any free number, this one is our decision."""

NOTIFY_OFF, NOTIFY_ON = "-1\n", "0\n"
READY = "1\n"

_CHARACTER_DEVICES = (
    (1, "mem"),
    (5, "/dev/tty"),
    (10, "misc"),
    (13, "input"),
    (136, "pts"),
    (MAJOR, "neuron"),
)
_TENSOR_HEADER = "xrow_grp,mm_active,wl_active,idle"
_ROW_GROUPS = 4


def number(value: int) -> str:
    """Return the text of a counter."""
    return f"{value}\n"


def neighbours(connected_to: Sequence[int] | None) -> str:
    """Return the text of `connected_devices`, an empty line for none."""
    return ", ".join(map(str, connected_to or ())) + "\n"


def serial_number(instance_id: str, device: int) -> str:
    """Return the text of `info/serial_number`; the number is made up from the instance's id."""
    digest = hashlib.sha256(f"serial\0{instance_id}\0{device}".encode()).digest()
    return f"{int.from_bytes(digest[:8], 'big'):016x}\n"


def uevent(device: int) -> str:
    """Return the text of `uevent`."""
    return f"MAJOR={MAJOR}\nMINOR={device}\nDEVNAME=neuron{device}\n"


def device_number(device: int) -> str:
    """Return the text of `dev`: major and minor number."""
    return f"{MAJOR}:{device}\n"


def power(status: str, unix_s: int, low: float, high: float, mean: float) -> str:
    """Return the text of `stats/power/utilization`: status, time, and percent over the last minute."""
    return f"{status},{unix_s},{low:.2f},{high:.2f},{mean:.2f}\n"


def tensor_counters(active: int, idle: int) -> str:
    """Return the text of `pe_cntrs`: cycles of each row group of the tensor engine, alike for all of them."""
    rows = [f"{group},{active},0,{idle}" for group in range(_ROW_GROUPS)]
    return "\n".join([_TENSOR_HEADER, *rows]) + "\n"


def character_devices() -> str:
    """Return the text that stands in for `/proc/devices`."""
    rows = "".join(f"{major:3} {name}\n" for major, name in _CHARACTER_DEVICES)
    return f"Character devices:\n{rows}\nBlock devices:\n"
