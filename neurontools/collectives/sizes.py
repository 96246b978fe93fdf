"""Message sizes: their notation and the sweep from the smallest to the largest."""

from __future__ import annotations

import re
from fractions import Fraction

from neurontools.errors import UsageError

DEFAULT_BYTES = 32 * 2**20
MAX_BYTES = 2**40
MAX_ROWS = 4096

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*(?:([kmgt])?(?:i?b)?)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `1kb`, `32M`, `1.5GB` or `4096`; units are powers of 1024 in any case.

    Raises:
        UsageError: it is not a size, not a whole number of bytes, zero, or above 1 TiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", "use bytes or a number with kb, MB or GB, such as 512kb")
    size = Fraction(match[1]) * _UNITS[(match[2] or "").lower()]
    if size.denominator != 1:
        raise UsageError(f"{text!r} is not a whole number of bytes")
    if not 0 < size <= MAX_BYTES:
        raise UsageError(f"size {text!r} is out of range", "sizes go from 1 byte to 1024GB")
    return int(size)


def sweep(
    minimum: int, maximum: int, *, step: int | None = None, factor: float | None = None
) -> tuple[int, ...]:
    """Return the sizes from `minimum` to `maximum`: by a step, by a factor, or in ten equal steps.

    Raises:
        UsageError: the limits are in the wrong order, or the step makes no or too many sizes.
    """
    if minimum > maximum:
        raise UsageError(
            f"the smallest size {minimum} is above the largest {maximum}",
            "set both: -b/--minbytes and -e/--maxbytes (each is 32MB by default)",
        )
    if step is not None and factor is not None:
        raise UsageError("-i/--stepbytes and -f/--stepfactor exclude each other", "give one of them")
    if factor is not None:
        return _by_factor(minimum, maximum, factor)
    return _by_step(minimum, maximum, step or (maximum - minimum) // 10 or maximum)


def _by_factor(minimum: int, maximum: int, factor: float) -> tuple[int, ...]:
    if not 1 < factor < float("inf"):
        raise UsageError(f"step factor {factor:g} does not grow", "give a number above 1, such as -f 2")
    sizes, size = [minimum], float(minimum)
    while (size := size * factor) <= maximum:
        sizes.append(int(size))
        _check_count(len(sizes))
    return tuple(dict.fromkeys(sizes))


def _by_step(minimum: int, maximum: int, step: int) -> tuple[int, ...]:
    _check_count((maximum - minimum) // step + 1)
    return tuple(range(minimum, maximum + 1, step))


def _check_count(count: int) -> None:
    if count > MAX_ROWS:
        raise UsageError(
            f"the sweep has more than {MAX_ROWS} sizes", "give a larger step (-i) or factor (-f)"
        )


def round_sizes(sizes: tuple[int, ...], multiple: int) -> tuple[int, ...]:
    """Return the sizes rounded down to a multiple, to at least one multiple, each once."""
    return tuple(dict.fromkeys(max(size - size % multiple, multiple) for size in sizes))
