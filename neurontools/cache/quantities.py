"""Sizes and durations as people write them: `20GB`, `512MiB`, `30d`, `1h30m`."""

from __future__ import annotations

import re

from neurontools.errors import UsageError

_UNITS = ("", "K", "M", "G", "T", "P")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(I?)B?", re.IGNORECASE)
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PERIOD = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_DIGITS_MAX = 18
_CLOCKS_APART_S = 60.0
FUTURE = "future"


def parse_size(text: str) -> int:
    """Return bytes: `20GB` and `20G` count by 1000, `20GiB` by 1024, a bare number is bytes.

    Raises:
        UsageError: not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or len(found[1]) > _DIGITS_MAX or (found[3] and not found[2]):
        raise UsageError(f"not a size: {text!r}", "write for example 20GB, 512MiB or 0")
    base = 1024 if found[3] else 1000
    factor: int = base ** _UNITS.index(found[2].upper())
    return round(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor


def parse_duration(text: str) -> float:
    """Return seconds: `30d`, `12h`, `90s`, `2w`, or several of them, largest first or not.

    Raises:
        UsageError: not a duration; a bare number other than 0 has no unit and is none.
    """
    compact = text.strip().lower().replace(" ", "")
    if compact == "0":
        return 0.0
    parts = _PERIOD.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact or len(compact) > 64:
        raise UsageError(f"not a duration: {text!r}", "write for example 30d, 12h or 1h30m")
    return sum(float(number) * _PERIODS[unit] for number, unit in parts)


def format_size(size_bytes: int) -> str:
    """Return a size by 1000 with three digits: `0 B`, `1.23 kB`, `45.6 MB`."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5 or unit == "PB":
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError


def format_size_both(size_bytes: int) -> str:
    """Return a size by 1000 and by 1024: `1.23 GB (1.15 GiB)`; small ones once."""
    if size_bytes < 1024:
        return format_size(size_bytes)
    value, position = float(size_bytes), 0
    while value >= 1024 and position < len(_UNITS) - 1:
        value, position = value / 1024, position + 1
    return f"{format_size(size_bytes)} ({value:.2f} {_UNITS[position]}iB)"


def format_age(seconds: float) -> str:
    """Return an age as `format_duration` does, and `future` for a time that a clock ahead of ours has left."""
    return FUTURE if seconds < -_CLOCKS_APART_S else format_duration(seconds)


def format_duration(seconds: float) -> str:
    """Return a duration in its largest sensible unit: `8s`, `12m`, `5h`, `30d`."""
    if seconds < 120:
        return f"{max(0, int(seconds))}s"
    if seconds < 7200:
        return f"{int(seconds // 60)}m"
    if seconds < 172800:
        return f"{int(seconds // 3600)}h"
    return f"{int(seconds // 86400)}d"
