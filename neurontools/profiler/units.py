"""Numbers as people read and write them."""

from __future__ import annotations

import re

from neurontools.errors import UsageError

_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_SCALE = ("", "K", "M", "G", "T", "P", "E")
_DURATION = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|m)?\s*")


def duration(ns: float) -> str:
    """Return a time with four significant digits: `12.35 ms`."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            return f"{_significant(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def tick_step(span_ns: int, ticks: int) -> int:
    """Return the round step (1, 2 or 5 times a power of ten, nanoseconds) that gives at most `ticks` on a span."""
    wanted = -(-span_ns // max(ticks, 1))
    power = int("1" + "0" * (len(str(wanted)) - 1))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= wanted)


def tick(time_ns: int, step_ns: int) -> str:
    """Return a time with as many digits as neighbours a step apart need: `2.51 ms`."""
    for unit, size in (("s", 9), ("ms", 6), ("us", 3)):
        if time_ns >= 10**size:
            zeros = len(str(step_ns)) - len(str(step_ns).rstrip("0"))
            return f"{time_ns / 10**size:.{max(size - zeros, 0)}f} {unit}"
    return f"{time_ns} ns"


def parse_duration(text: str) -> int:
    """Return the nanoseconds of `1.5ms`, `20 us`, `3s`; a number alone is nanoseconds.

    Raises:
        UsageError: it is no time.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no time", "write a number with ns, us, ms or s, for example 1.5ms")
    number, unit = match.groups()
    whole, _, fraction = number.partition(".")
    factor = _NS[unit or "ns"]
    part = round(int(fraction) * factor / 10 ** len(fraction)) if fraction else 0
    return int(whole) * factor + (-part if number.startswith("-") else part)


def count(value: float) -> str:
    """Return a large number with a decimal prefix: `1.235 G`."""
    index = 0
    while abs(value) >= 1000 and index < len(_SCALE) - 1:
        value /= 1000
        index += 1
    if index == 0:
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
    return f"{_significant(value)} {_SCALE[index]}"


def _significant(value: float) -> str:
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f}"
