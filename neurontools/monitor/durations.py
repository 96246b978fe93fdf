"""Durations as Go writes them: `1s`, `500ms`, `1m30s`, `1.5h`."""

from __future__ import annotations

import re

from neurontools.errors import NeuronToolsError

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


class DurationError(NeuronToolsError):
    """A text is not a duration."""


def seconds(text: str) -> float:
    """Return the seconds of a duration.

    Raises:
        DurationError: it is not one; the message says why.
    """
    digits = text[1:] if text[:1] in {"+", "-"} else text
    sign = -1.0 if text[:1] == "-" else 1.0
    if digits == "0":
        return 0.0
    total = 0.0
    end = 0
    for part in _PART.finditer(digits):
        if part.start() != end:
            break
        total += float(part[1]) * _UNITS_S[part[2]]
        end = part.end()
    if end != len(digits) or not digits:
        raise DurationError(
            f"{text!r} is not a duration", 'write a number and a unit, e.g. "1s", "500ms", "1m30s"'
        )
    return sign * total
