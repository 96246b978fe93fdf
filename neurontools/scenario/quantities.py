"""Durations, sizes, shares and NRT status names as a scenario writes them, and durations as a person reads them."""

from __future__ import annotations

import math
import re

from neurontools.runtime.status import NrtStatus

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|min|s|m|h|d)")
_SIZE_UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]I?B|B)?")

DURATION_FORM = "a duration such as 500ms, 30s, 5m or 1h30m"
SIZE_FORM = "a size such as 512 MiB, 12 GiB or a number of bytes"
PERCENT_FORM = "a number of percent such as 85 or 2.5%"


def duration(text: str) -> float:
    """Return the seconds of a duration such as `500ms`, `1h30m` or a plain number of seconds.

    Raises:
        ValueError: it is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        words = text.strip()
        found = _DURATION.findall(words)
        if not found or _DURATION.sub("", words).strip():
            raise
        seconds = sum(float(amount) * _DURATION_UNITS[unit] for amount, unit in found)
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def size(text: str) -> float:
    """Return the bytes of a size such as `12 GiB`, `500 MB` or a plain number of bytes.

    Raises:
        ValueError: it is none.
    """
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        raise ValueError(text)
    return float(match[1]) * float(_SIZE_UNITS[match[2] or ""])


def number(text: str) -> float:
    """Return a number of at least 0.

    Raises:
        ValueError: it is none.
    """
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def percent(text: str) -> float:
    """Return a number of percent, written with or without the sign.

    Raises:
        ValueError: it is none.
    """
    return number(text.strip().removesuffix("%"))


def whole(text: str) -> int:
    """Return a whole number of at least 0.

    Raises:
        ValueError: it is none.
    """
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def status(text: str) -> int:
    """Return the number of an NRT status other than success, given by name (with or without `NRT_`) or number.

    Raises:
        ValueError: there is none such.
    """
    if text.isdecimal():
        found = NrtStatus(int(text))
    else:
        name = text.upper()
        try:
            found = NrtStatus[name if name.startswith("NRT_") else f"NRT_{name}"]
        except KeyError:
            raise ValueError(text) from None
    if found is NrtStatus.NRT_SUCCESS:
        raise ValueError(text)
    return int(found)


def duration_text(seconds: float) -> str:
    """Return a duration for a person: `90ms`, `45s`, `5m`, `1h30m`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    whole_s = round(seconds)
    if whole_s < 60:
        return f"{seconds:.3g}s"
    parts = ((whole_s // 3600, "h"), (whole_s % 3600 // 60, "m"), (whole_s % 60, "s"))
    return "".join(f"{amount}{unit}" for amount, unit in parts if amount)
