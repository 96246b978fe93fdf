"""How many of a process's executions failed of late: over ten seconds, so that a single failure of a slow second is no alarm."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from neurontools.machine.view import process_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.machine.snapshot import ProcessState
    from neurontools.machine.view import ProcessKey

WINDOW_S = 10.0

_Totals = tuple[float, int, int]


class ErrorShares:
    """Remembers the totals of each process for `WINDOW_S`."""

    def __init__(self) -> None:
        self._totals: dict[ProcessKey, deque[_Totals]] = {}

    def look(self, now_s: float, rows: Sequence[ProcessRow]) -> dict[int, float]:
        """Return by pid the share (0..1) of the executions of the last seconds that failed, where any did.

        Args:
            now_s: on a clock that does not go back.
            rows: the processes, over the interval since the last look.
        """
        totals = {}
        shares = {}
        for row in rows:
            key = process_key(row.process)
            seen = self._totals.get(key) or deque([_totals(now_s, row.before)])
            seen.append(_totals(now_s, row.process))
            while len(seen) > 2 and seen[1][0] <= now_s - WINDOW_S:
                seen.popleft()
            totals[key] = seen
            (_, executed, failed), (_, executed_now, failed_now) = seen[0], seen[-1]
            if failed_now > failed and executed_now > executed:
                shares[row.process.pid] = min(1.0, (failed_now - failed) / (executed_now - executed))
        self._totals = totals
        return shares


def _totals(now_s: float, process: ProcessState | None) -> _Totals:
    if process is None:
        return now_s, 0, 0
    counts = process.status_counts
    return now_s, sum(count for _, count in counts), sum(count for status, count in counts if status)
