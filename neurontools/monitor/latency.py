"""Latency percentiles from a snapshot's histogram of wall times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.monitor.report import Percentiles

_PERCENTS = (0, 1, 25, 50, 75, 99, 100)
_SECONDS_DIGITS = 9


def percentiles(counts: Sequence[int]) -> Percentiles | None:
    """Return the percentiles of a histogram, None when it is empty.

    Args:
        counts: bucket i holds the executions that took 2**(i/2) to 2**((i+1)/2) microseconds. Inside a bucket they
            are taken as spread evenly over the logarithm, so a value is at most 41 % off.
    """
    if not any(counts):
        return None
    from neurontools.monitor.report import Percentiles

    return Percentiles(*quantiles_s(counts, _PERCENTS))


def quantile_s(counts: Sequence[int], percent: float) -> float:
    """Return the latency in seconds of a percentile of a histogram.

    Args:
        counts: as in `percentiles`, not all zero.
        percent: 0 to 100; 0 is where the first bucket in use begins.
    """
    return quantiles_s(counts, (percent,))[0]


def quantiles_s(counts: Sequence[int], percents: Sequence[float]) -> list[float]:
    """Return `quantile_s` for several percents, which go up; the histogram is looked through once."""
    whole = sum(counts)
    wanted = [whole * percent / 100 for percent in percents]
    found: list[float] = []
    seen = 0
    for bucket, count in enumerate(counts):
        if count:
            while len(found) < len(wanted) and seen + count >= wanted[len(found)]:
                position = bucket + min(1.0, (wanted[len(found)] - seen) / count)
                found.append(round(2 ** (position / 2) * 1e-6, _SECONDS_DIGITS))
            seen += count
            if len(found) == len(wanted):
                break
    return found
