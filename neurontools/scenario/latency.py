"""Latencies of executions: a lognormal body with a tail, as exact counts by bucket of a telemetry page.

A fixed sequence of `_BLOCK` executions is spread over the buckets by the distribution's quantiles and then repeats;
so the counts of the first n executions are a function of n, always add up to n, and never fall.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

from neurontools.machine.snapshot import LATENCY_BUCKETS

_BLOCK_BITS = 11
_BLOCK = 1 << _BLOCK_BITS
_P99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True)
class Latency:
    """A distribution of wall times.

    Half of the body's executions take `p50_s` or less, 99 % take `p99_s` or less. The share `tail_share` (0..1) of
    all executions takes `tail_factor` times as long.
    """

    p50_s: float
    p99_s: float
    tail_share: float = 0.0
    tail_factor: float = 1.0

    @cached_property
    def mean_s(self) -> float:
        """The mean wall time."""
        times = _times(self)
        return sum(times) / len(times)

    def counts(self, executions: int, offset: int = 0) -> tuple[int, ...]:
        """Return how many of the first executions fall into each bucket of `ProcessState.latency_counts`.

        Args:
            executions: how many.
            offset: where in the repeating sequence the first one stands, so that two processes differ.
        """
        counts = [0] * LATENCY_BUCKETS
        start = offset % _BLOCK
        rounds, rest = divmod(start + executions, _BLOCK)
        for bucket, places in _places(self):
            counts[bucket] = rounds * len(places) + bisect_left(places, rest) - bisect_left(places, start)
        return tuple(counts)


def bucket_of(seconds: float) -> int:
    """Return the bucket of a wall time: half a power of two of microseconds each."""
    wall_ns = round(seconds * 1e9)
    return min(max((wall_ns * wall_ns // 1_000_000).bit_length() - 1, 0), LATENCY_BUCKETS - 1)


@lru_cache(maxsize=256)
def _times(latency: Latency) -> tuple[float, ...]:
    # One time for each place of the block, in ascending order of body and tail.
    tail = round(latency.tail_share * _BLOCK)
    sigma = math.log(latency.p99_s / latency.p50_s) / _P99
    body = _quantiles(latency.p50_s, sigma, _BLOCK - tail)
    return (*body, *_quantiles(latency.p50_s * latency.tail_factor, sigma, tail))


def _quantiles(median_s: float, sigma: float, count: int) -> tuple[float, ...]:
    normal = NormalDist()
    return tuple(median_s * math.exp(sigma * normal.inv_cdf((place + 0.5) / count)) for place in range(count))


@lru_cache(maxsize=256)
def _places(latency: Latency) -> tuple[tuple[int, list[int]], ...]:
    # The places of each bucket in the block. Reversing the bits of a place spreads neighbours far apart.
    places: dict[int, list[int]] = {}
    times = _times(latency)
    for place in range(_BLOCK):
        rank = int(f"{place:0{_BLOCK_BITS}b}"[::-1], 2)
        places.setdefault(bucket_of(times[rank]), []).append(place)
    return tuple(sorted(places.items()))
