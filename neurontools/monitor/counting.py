"""What a Prometheus exporter keeps between reports: counters that only grow, and when each series was last told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counter:
    """A Prometheus counter: its value, and when it was created, in seconds since 1970."""

    created_unix_s: float
    value: float = 0.0
    _reported: int | None = None

    def add(self, amount: float) -> None:
        """Count what happened in a period; negative amounts of a damaged stream are ignored."""
        self.value += max(0, amount)

    def follow(self, total: int) -> None:
        """Take over a total that somebody else counts; when it went down it was reset, and counting goes on from there."""
        if self._reported is None or total < self._reported:
            self.value += max(0, total)
        else:
            self.value += total - self._reported
        self._reported = total


class Freshness:
    """Tells which series are no longer reported: those that were absent when their period was over.

    A report holds only the groups that were due, so absence alone says nothing.
    """

    _DEFAULT_PERIOD_S = 5.0
    _EARLY = 0.9
    _SILENT_PERIODS = 3.0

    def __init__(self) -> None:
        self._seen_s: dict[tuple[str, int], float] = {}
        self._periods_s: dict[str, float] = {}

    def told(self, group: str, key: int, period_s: float, now_s: float) -> None:
        """Note that a group of something (0: the host, else a pid) was reported.

        Args:
            group: name of the group.
            key: of whom.
            period_s: what the report covers; the first one covers next to nothing and does not count.
            now_s: monotonic seconds.
        """
        if (group, key) in self._seen_s:
            self._periods_s[group] = period_s
        self._seen_s[group, key] = now_s

    def missing(self, now_s: float) -> list[tuple[str, int]]:
        """Return and forget, after a report, what should have been in it by now."""
        return self._expired(now_s, self._EARLY)

    def silent(self, now_s: float) -> list[tuple[str, int]]:
        """Return and forget, between reports, what has been silent for several periods."""
        return self._expired(now_s, self._SILENT_PERIODS)

    def _expired(self, now_s: float, periods: float) -> list[tuple[str, int]]:
        expired = [
            series
            for series, seen_s in self._seen_s.items()
            if now_s - seen_s >= periods * self._periods_s.get(series[0], self._DEFAULT_PERIOD_S)
        ]
        for series in expired:
            del self._seen_s[series]
        return expired
