"""The axes of a timeline: the wall clock, and device time, on which the host's time between executions is a narrow band.

A position on the device axis is device time plus one band for each gap before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neurontools.profiler.trace.intervals import union

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace

_BAND_SHARE = 40
"""A band is at most this part of the median execution."""
_MOST_GAPS = 500


class AxisGap(NamedTuple):
    """Time between executions on an axis: its position and width there, and how long it really is, nanoseconds."""

    position: int
    width: int
    length_ns: int


class WallAxis:
    """The wall clock: positions are nanoseconds since the first event."""

    name = "wall clock"
    is_device = False

    def __init__(self, total_ns: int) -> None:
        self.total_ns = total_ns

    def positions(self, times: Int64s) -> Int64s:
        """Return the positions of times of the trace."""
        return times

    def times(self, positions: Int64s) -> Int64s:
        """Return the times of the trace at positions."""
        return positions

    def clock(self, positions: Int64s) -> Int64s:
        """Return what the axis shows at positions."""
        return positions

    def at_clock(self, shown: Int64s) -> Int64s:
        """Return the positions at which the axis shows a time."""
        return shown

    def gaps(self, first: int, last: int) -> list[AxisGap]:  # noqa: ARG002
        """Return the collapsed gaps that touch a stretch: none."""
        return []


@dataclass(frozen=True)
class DeviceAxis:
    """Executions one after another; a gap between them is never wider than `band_ns`.

    Args:
        starts, ends: stretches of the trace in which a core executes, disjoint and in order.
        band_ns: how wide a gap is at most.
    """

    starts: Int64s
    ends: Int64s
    band_ns: int

    name = "device time"
    is_device = True

    @cached_property
    def _gap_ns(self) -> Int64s:
        """Lengths of the gaps after the stretches, but for the last."""
        return self.starts[1:] - self.ends[:-1]

    @cached_property
    def _bands(self) -> Int64s:
        return np.minimum(self._gap_ns, self.band_ns)

    @cached_property
    def _device(self) -> Int64s:
        """Device time before each stretch."""
        return np.concatenate(([0], np.cumsum(self.ends - self.starts)))[:-1]

    @cached_property
    def _first(self) -> Int64s:
        """Positions of the starts."""
        return self._device + np.concatenate(([0], np.cumsum(self._bands)))

    @cached_property
    def _last(self) -> Int64s:
        return self._first + self.ends - self.starts

    @property
    def total_ns(self) -> int:
        """The position of the end."""
        return int(self._last[-1])

    def positions(self, times: Int64s) -> Int64s:
        """Return the positions of times of the trace; those before the first execution and after the last are at the ends."""
        at = np.maximum(np.searchsorted(self.starts, times, side="right") - 1, 0)
        inside = np.clip(times - self.starts[at], 0, self.ends[at] - self.starts[at])
        after = np.maximum(times - self.ends[at], 0)
        gap, band = self._gap_after(at)
        # Floating point is exact enough for a band, and cannot overflow for gaps of days.
        within = np.minimum((after / np.maximum(gap, 1) * band).astype(np.int64), band)
        positions: Int64s = self._first[at] + inside + within
        return positions

    def times(self, positions: Int64s) -> Int64s:
        """Return the times of the trace at positions."""
        at = np.maximum(np.searchsorted(self._first, positions, side="right") - 1, 0)
        offset = np.maximum(positions - self._first[at], 0)
        length = self.ends[at] - self.starts[at]
        after = np.maximum(offset - length, 0)
        gap, band = self._gap_after(at)
        within = np.minimum((after / np.maximum(band, 1) * gap).astype(np.int64), gap)
        found: Int64s = self.starts[at] + np.minimum(offset, length) + within
        return found

    def clock(self, positions: Int64s) -> Int64s:
        """Return the device time at positions, gaps left out."""
        at = np.maximum(np.searchsorted(self._first, positions, side="right") - 1, 0)
        offset = np.clip(positions - self._first[at], 0, self.ends[at] - self.starts[at])
        return self._device[at] + offset

    def at_clock(self, shown: Int64s) -> Int64s:
        """Return the positions at which device times are reached."""
        at = np.maximum(np.searchsorted(self._device, shown, side="right") - 1, 0)
        return self._first[at] + np.clip(shown - self._device[at], 0, self.ends[at] - self.starts[at])

    def gaps(self, first: int, last: int) -> list[AxisGap]:
        """Return the gaps that touch a stretch, none if there are more than a screen can show."""
        begin = max(int(np.searchsorted(self._first, first, side="right")) - 1, 0)
        end = min(int(np.searchsorted(self._last, last, side="right")), len(self._bands))
        if end - begin > _MOST_GAPS:
            return []
        return [
            AxisGap(int(self._last[number]), int(self._bands[number]), int(self._gap_ns[number]))
            for number in range(begin, end)
            if self._last[number] + self._bands[number] > first
        ]

    def _gap_after(self, at: Int64s) -> tuple[Int64s, Int64s]:
        if len(self._bands) == 0:
            nothing: Int64s = np.zeros(len(at), dtype=np.int64)
            return nothing, nothing
        gap = np.minimum(at, len(self._bands) - 1)
        is_last = at >= len(self._bands)
        return np.where(is_last, 0, self._gap_ns[gap]), np.where(is_last, 0, self._bands[gap])


Axis = WallAxis | DeviceAxis


def device_axis(trace: Trace) -> DeviceAxis | None:
    """Return the axis of device time, None for a trace without modelled executions."""
    runs = [each.take(each.device_start >= 0) for each in trace.runs]
    starts = np.concatenate([each.device_start for each in runs]) if runs else np.zeros(0, dtype=np.int64)
    lengths = np.concatenate([each.device_ns for each in runs]) if runs else starts
    first, last = union(starts, lengths)
    if len(first) == 0:
        return None
    band = max(int(np.median(lengths[lengths > 0])) // _BAND_SHARE, 1)
    return DeviceAxis(first, last, band)
