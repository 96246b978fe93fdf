"""The stretch of time that a screen shows: zoom and pan as pure functions of int64 nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from neurontools.profiler.arrays import Int64s


@dataclass(frozen=True, slots=True)
class Viewport:
    """A window of `span_ns` from `start_ns` on a profile that lasts `total_ns`, drawn in `columns` cells.

    A cell is never shorter than a nanosecond and the window never longer than the profile (but for that), and it
    stays inside the profile.
    """

    start_ns: int
    span_ns: int
    total_ns: int
    columns: int

    @classmethod
    def fit(cls, total_ns: int, columns: int) -> Viewport:
        """Return the window that shows everything."""
        return cls(0, max(total_ns, columns, 1), total_ns, columns)

    @property
    def end_ns(self) -> int:
        """The end of the window."""
        return self.start_ns + self.span_ns

    @property
    def ns_per_cell(self) -> float:
        """How long a cell is."""
        return self.span_ns / self.columns

    def edges(self) -> Int64s:
        """Return the `columns` + 1 edges of the cells."""
        steps: Int64s = np.arange(self.columns + 1, dtype=np.int64)
        whole, rest = divmod(self.span_ns, self.columns)
        return self.start_ns + steps * whole + steps * rest // self.columns

    def column_of(self, time_ns: int) -> int:
        """Return the cell that a time falls into; outside of 0..columns - 1 when it is not in the window."""
        return (time_ns - self.start_ns) * self.columns // self.span_ns

    def resized(self, columns: int) -> Viewport:
        """Return the same window on a screen of another width."""
        return _bounded(replace(self, columns=max(columns, 1)))

    def zoomed(self, factor: float, at_ns: int) -> Viewport:
        """Return the window `factor` times as long, with `at_ns` staying where it is on the screen."""
        span = max(int(self.span_ns * factor), 1)
        span = min(max(span, self.columns), self.longest_ns)
        share = (at_ns - self.start_ns) / self.span_ns
        return _bounded(replace(self, span_ns=span, start_ns=at_ns - int(share * span)))

    def panned(self, share: float) -> Viewport:
        """Return the window moved by a share of its length; at least by a nanosecond."""
        step = int(self.span_ns * share) or (1 if share > 0 else -1)
        return _bounded(replace(self, start_ns=self.start_ns + step))

    def centred(self, time_ns: int) -> Viewport:
        """Return the window with a time in its middle."""
        return _bounded(replace(self, start_ns=time_ns - self.span_ns // 2))

    def showing(self, start_ns: int, duration_ns: int) -> Viewport:
        """Return the window moved, and made longer where needed, so that an event is inside."""
        if self.start_ns <= start_ns and start_ns + duration_ns <= self.end_ns:
            return self
        wide = replace(self, span_ns=min(max(self.span_ns, duration_ns * 2), self.longest_ns))
        return wide.centred(start_ns + duration_ns // 2)

    @property
    def longest_ns(self) -> int:
        """The longest window there may be."""
        return max(self.total_ns, self.columns, 1)


def _bounded(view: Viewport) -> Viewport:
    span = min(max(view.span_ns, view.columns), view.longest_ns)
    return replace(view, span_ns=span, start_ns=max(0, min(view.start_ns, view.longest_ns - span)))
