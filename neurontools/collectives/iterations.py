"""Times of single iterations around the modelled mean, and statistics of them.

The spread is made up (a log-normal distribution with a few stragglers), depends on the seed only, and leaves the mean
as it is, so that percentiles differ from the average as on a real machine.
"""

from __future__ import annotations

import math
import random
import re
from typing import TYPE_CHECKING

from neurontools.collectives.constants import constants
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

AVERAGE = "avg"

_STRAGGLER_SHARE = 0.03
_STRAGGLER_FACTOR = 1.06
_PERCENTILE = re.compile(r"p(\d{1,3}(?:\.\d{1,3})?)", re.ASCII)


def iteration_times(mean_s: float, count: int, seed: str) -> tuple[float, ...]:
    """Return modelled seconds of `count` iterations whose mean is `mean_s`."""
    chance = random.Random(seed)  # noqa: S311  nothing secret
    factors = [
        chance.lognormvariate(0.0, constants().jitter)
        * (_STRAGGLER_FACTOR if chance.random() < _STRAGGLER_SHARE else 1.0)
        for _ in range(count)
    ]
    scale = mean_s * count / math.fsum(factors)
    return tuple(factor * scale for factor in factors)


def check_statistics(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of statistics, each once.

    Raises:
        UsageError: there is none, or a name is neither `avg` nor a percentile from `p0` to `p100`.
    """
    if not names:
        raise UsageError("no statistic", "give avg and percentiles such as p50 p99")
    for name in names:
        match = _PERCENTILE.fullmatch(name)
        if name != AVERAGE and (match is None or float(match[1]) > 100):
            raise UsageError(f"unknown statistic {name!r}", "give avg and percentiles such as p50 p99")
    return tuple(dict.fromkeys(names))


def statistic(name: str, times: Sequence[float]) -> float:
    """Return the average, or a percentile by nearest rank."""
    if name == AVERAGE:
        return math.fsum(times) / len(times)
    rank = math.ceil(float(name[1:]) / 100 * len(times))
    return sorted(times)[max(rank, 1) - 1]
