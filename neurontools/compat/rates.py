"""Rates of samples in training logs."""

from __future__ import annotations

import os
import time


class RateTracker:
    """Counts samples and returns smoothed rates.

    Args:
        smooth_factor: weight of the newest rate, 0 to 1; by default RATE_TRACKER_SMOOTHING, or 0.4.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        default = float(os.environ.get("RATE_TRACKER_SMOOTHING", "0.4"))
        self._weight = default if smooth_factor is None else smooth_factor
        self._start = self._last = time.time()
        self._before = 0.0
        self._count = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Count samples."""
        self._count += count

    def rate(self) -> float:
        """Return the smoothed rate since the last call, in samples a second."""
        now = time.time()
        elapsed = now - self._last
        if elapsed <= 0:
            return 0.0
        newest = self._count / elapsed
        if self._rate is not None:
            newest = self._weight * newest + (1 - self._weight) * self._rate
        self._before += self._count
        self._count, self._last, self._rate = 0.0, now, newest
        return newest

    def global_rate(self) -> float:
        """Return the mean rate since the start, in samples a second."""
        elapsed = time.time() - self._start
        return (self._before + self._count) / elapsed if elapsed > 0 else 0.0
