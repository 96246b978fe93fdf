"""Options of `neurontools scenario` that are more than argparse knows."""

from __future__ import annotations

from neurontools.base.units import parse_duration
from neurontools.errors import UsageError


def duration_option(text: str | None, flag: str) -> float | None:
    """Return the seconds of an option, None where it is not given.

    Raises:
        UsageError: it is not a duration, or not longer than 0.
    """
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}", error.remedy) from error
    if seconds <= 0:
        raise UsageError(f"{flag} {text} is not longer than 0", "write for example 500ms, 30s, 5m or 1h30m")
    return seconds
