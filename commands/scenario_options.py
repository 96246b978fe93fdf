"""Options of `neurontools scenario` that are more than argparse knows."""

from __future__ import annotations

from neurontools.errors import UsageError
from neurontools.scenario.quantities import duration


def duration_option(text: str | None, flag: str) -> float | None:
    """Return the seconds of an option, None where it is not given.

    Raises:
        UsageError: it is no duration longer than 0.
    """
    if text is None:
        return None
    try:
        seconds = duration(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise UsageError(f"{flag} {text} is no duration", "write 500ms, 30s, 5m or 1h30m")
    return seconds
