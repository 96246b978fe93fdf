"""Sizes and durations: one grammar to read them, one set of functions to print them.

kB, MB and GB are powers of 1000; KiB, MiB and GiB are powers of 1024.
"""

from __future__ import annotations

import re
from fractions import Fraction

from neurontools.errors import UsageError

_PREFIXES = "KMGTPE"
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([KMGTPE])(I?))?B?", re.ASCII | re.IGNORECASE)
_DURATION_PART = re.compile(r"(\d{1,19}(?:\.\d{1,18})?)\s*(ns|us|µs|ms|min|[smhdw])\s*", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?", re.ASCII)
_UNIT_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 604800 * 10**9,
}
_MAX_SIZE_BYTES = 2**63 - 1
_MAX_DURATION_NS = 100 * 365 * 86400 * 10**9


def parse_size(text: str, *, binary: bool = False) -> int:
    """Return the bytes of a size such as `20GB`, `512MiB` or `4096` (bytes).

    Args:
        text: the size; letter case and blanks before the unit do not matter.
        binary: whether `kB`, `MB` ... are powers of 1024 too, as nccom-test reads them.

    Raises:
        UsageError: it is not a size, or above 8 EiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or ("." in match[1] and not match[2]):
        raise UsageError(f"invalid size {text!r}", "use bytes or a unit, for example 4096, 20GB or 512MiB")
    base = 1024 if match[3] or binary else 1000
    power = _PREFIXES.index(match[2].upper()) + 1 if match[2] else 0
    size_bytes: int = round(Fraction(match[1]) * base**power)
    if size_bytes > _MAX_SIZE_BYTES:
        raise UsageError(f"size {text!r} is too large", "the maximum is 8EiB")
    return size_bytes


def parse_duration(text: str, *, needs_unit: bool = False) -> float:
    """Return the seconds of a duration such as `250ms`, `1h30m`, `30d` or, unless `needs_unit`, `5` (seconds).

    Raises:
        UsageError: it is not a duration, above 100 years, or a bare number other than 0 where a unit is needed.
    """
    return parse_duration_ns(text, needs_unit=needs_unit) / 1e9


def parse_age(text: str) -> float:
    """Return the seconds of an age such as `30d`, `12h` or `1h30m`; only 0 needs no unit.

    Raises:
        UsageError: it is not an age.
    """
    return parse_duration(text.lower(), needs_unit=True)


def parse_duration_ns(text: str, *, needs_unit: bool = False) -> int:
    """Return the nanoseconds of a duration, as `parse_duration` reads it.

    Raises:
        UsageError: as `parse_duration`.
    """
    compact = text.strip()
    if _NUMBER.fullmatch(compact):
        if needs_unit and Fraction(compact) != 0:
            raise UsageError(
                f"duration {text!r} needs a unit", f"for example {compact}s, {compact}m or {compact}d"
            )
        duration_ns = round(Fraction(compact) * 10**9)
    else:
        parts = _DURATION_PART.findall(compact)
        if not parts or _DURATION_PART.sub("", compact):
            raise UsageError(f"invalid duration {text!r}", "use for example 250ms, 30s, 12h, 1h30m or 30d")
        duration_ns = round(sum(Fraction(number) * _UNIT_NS[unit] for number, unit in parts))
    if duration_ns > _MAX_DURATION_NS:
        raise UsageError(f"duration {text!r} is too long", "the maximum is 100 years")
    return duration_ns


def format_size(size_bytes: float) -> str:
    """Return a size in powers of 1000 with three digits: `0 B`, `1.23 kB`, `45.6 MB`."""
    return _scaled(size_bytes, 1000, ("kB", "MB", "GB", "TB", "PB", "EB"))


def format_binary_size(size_bytes: float) -> str:
    """Return a size in powers of 1024 with three digits: `512 B`, `4.00 KiB`, `1.50 MiB`."""
    return _scaled(size_bytes, 1024, ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def format_size_both(size_bytes: int) -> str:
    """Return a size in powers of 1000 and of 1024: `1.23 GB (1.15 GiB)`; below 1 KiB once."""
    if size_bytes < 1024:
        return format_size(size_bytes)
    value, index = size_bytes / 1024, 0
    while value >= 1024 and index < len(_PREFIXES) - 1:
        value, index = value / 1024, index + 1
    return f"{format_size(size_bytes)} ({value:.2f} {_PREFIXES[index]}iB)"


def _scaled(size_bytes: float, base: int, units: tuple[str, ...]) -> str:
    if size_bytes < base:
        return f"{size_bytes:.0f} B"
    value = size_bytes / base
    index = 0
    while value >= base - 0.5 and index < len(units) - 1:
        value /= base
        index += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {units[index]}"


def format_age(seconds: float) -> str:
    """Return an age or a rough duration in its largest unit: `8s`, `12m`, `5h`, `30d`."""
    if seconds < 120:
        return f"{max(0, int(seconds))}s"
    if seconds < 7200:
        return f"{int(seconds // 60)}m"
    if seconds < 172800:
        return f"{int(seconds // 3600)}h"
    return f"{int(seconds // 86400)}d"


def format_time(unix_s: float) -> str:
    """Return a time in the user's time zone, to the second: `2023-11-14 22:13:20`; its seconds where no calendar has it."""
    from time import localtime, strftime

    try:
        return strftime("%Y-%m-%d %H:%M:%S", localtime(unix_s))
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:.0f} s"


def format_duration(seconds: float) -> str:
    """Return a duration as `parse_duration` reads it: `90ms`, `1.5s`, `45s`, `1h30m`, `2d4h`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    whole_s = round(seconds)
    if whole_s < 60:
        return f"{seconds:.3g}s"
    parts = (
        (whole_s // 86400, "d"),
        (whole_s % 86400 // 3600, "h"),
        (whole_s % 3600 // 60, "m"),
        (whole_s % 60, "s"),
    )
    return "".join(f"{amount}{unit}" for amount, unit in parts if amount)


def format_ns(duration_ns: float) -> str:
    """Return a time of nanoseconds to seconds with four significant digits: `17 ns`, `1.250 us`, `52.43 ms`."""
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(duration_ns) >= unit_ns:
            return f"{_significant(duration_ns / unit_ns)} {unit}"
    return f"{duration_ns:.0f} ns"


def format_count(value: float) -> str:
    """Return a large number with a decimal prefix: `950`, `1.235 G`."""
    prefixes = ("", "K", "M", "G", "T", "P", "E")
    index = 0
    while abs(value) >= 1000 and index < len(prefixes) - 1:
        value /= 1000
        index += 1
    if index == 0:
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
    return f"{_significant(value)} {prefixes[index]}"


def _significant(value: float) -> str:
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f}"


def format_percent(fraction: float) -> str:
    """Return a fraction as a whole percentage; what is neither 0 nor 1 never prints as `0 %` or `100 %`."""
    if 0 < fraction < 0.01:
        return "less than 1 %"
    if 0.99 < fraction < 1:
        return "over 99 %"
    return f"{fraction * 100:.0f} %"


def format_percentages(fractions: list[float]) -> list[str]:
    """Return fractions that add up to 1 as percentages with one decimal that add up to 100.0."""
    tenths = [int(fraction * 1000) for fraction in fractions]
    missing = 1000 - sum(tenths) if fractions else 0
    by_remainder = sorted(range(len(tenths)), key=lambda index: tenths[index] - fractions[index] * 1000)
    for index in by_remainder[: max(0, missing)]:
        tenths[index] += 1
    return [f"{value / 10:.1f} %" for value in tenths]
