"""The last minute second by second and the last hour minute by minute, of many series at once.

All series of a `SlotHistory` are sampled together, so a slot of time is one row of numbers. However often samples come,
it holds the same number of rows: a slot keeps the mean and the peak of its samples.
"""

from __future__ import annotations

from array import array
from itertools import starmap
from math import isnan, nan
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
SLOTS = 60

_FLOAT = "f"


class HistorySlot(Struct, frozen=True):
    """The samples of one series in one slot of time, in the unit of the samples."""

    mean: float
    peak: float


class RingBuffer:
    """The last slots of time of some columns of numbers; nan where there is none.

    Args:
        columns: how many numbers a slot has.
        slots: how many slots are kept.
    """

    def __init__(self, columns: int, slots: int = SLOTS) -> None:
        self._columns = columns
        self._slots = slots
        self._numbers = array(_FLOAT, [nan]) * (columns * slots)
        self._newest = -1

    def put(self, slot: int, numbers: Sequence[float]) -> None:
        """Fill a slot that is not older than the newest; skipped slots become empty."""
        for skipped in range(max(self._newest + 1, slot - self._slots + 1), slot):
            self._write(skipped, [nan] * self._columns)
        self._write(slot, numbers)
        self._newest = slot

    def column(self, index: int) -> list[float]:
        """Return a column, oldest slot first."""
        oldest = self._newest + 1
        return [
            self._numbers[slot % self._slots * self._columns + index]
            for slot in range(oldest, oldest + self._slots)
        ]

    def slots(self, means: int, peaks: int) -> tuple[HistorySlot | None, ...]:
        """Return the slots of a series from the columns of its means and peaks, oldest first; None where nothing was sampled."""
        return tuple(
            None if isnan(mean) else HistorySlot(mean, peak)
            for mean, peak in zip(self.column(means), self.column(peaks), strict=True)
        )

    def _write(self, slot: int, numbers: Sequence[float]) -> None:
        start = slot % self._slots * self._columns
        self._numbers[start : start + self._columns] = array(_FLOAT, numbers)


class SampledSlots:
    """Mean and peak of the samples of many series in each of the last slots of time.

    Args:
        series: how many series there are.
        slot_ns: length of a slot.
        slots: how many slots are kept, including the one being filled.
    """

    def __init__(self, series: int, slot_ns: int, slots: int = SLOTS) -> None:
        self._series = series
        self._slot_ns = slot_ns
        self._buffer = RingBuffer(2 * series, slots)
        self._slot: int | None = None
        self._sums: list[float] = []
        self._peaks: list[float] = []
        self._samples = 0
        self._last: Sequence[float] | None = None
        self._repeats = 0  # repeats of the last sample, not yet in the sums
        self._is_written = True

    def add(self, now_ns: int, values: Sequence[float]) -> None:
        """Add one sample of every series; a sample older than the newest slot is ignored.

        Args:
            now_ns: when, on a monotonic clock.
            values: one for each series; passing the same object again means that nothing changed.

        Raises:
            ValueError: there are more or fewer values than series.
        """
        if len(values) != self._series:
            raise ValueError(f"{len(values)} values for {self._series} series")
        slot = now_ns // self._slot_ns
        if self._slot is None or slot > self._slot:
            self._write()
            self._slot = slot
            self._sums, self._peaks, self._samples = list(values), list(values), 1
            self._last = values
        elif slot < self._slot:
            return
        elif values is self._last:
            self._samples += 1
            self._repeats += 1
        else:
            self._add_repeats()
            self._last = values
            self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]
            self._peaks = list(starmap(max, zip(self._peaks, values, strict=True)))
            self._samples += 1
        self._is_written = False

    def series(self, index: int) -> tuple[HistorySlot | None, ...]:
        """Return the slots of a series, oldest first; None where nothing was sampled."""
        self._write()
        return self._buffer.slots(index, self._series + index)

    def _add_repeats(self) -> None:
        if self._repeats and self._last is not None:
            self._sums = [
                total + self._repeats * value for total, value in zip(self._sums, self._last, strict=True)
            ]
            self._repeats = 0

    def _write(self) -> None:
        if self._slot is None or self._is_written:
            return
        self._add_repeats()
        means = [total / self._samples for total in self._sums]
        self._buffer.put(self._slot, means + self._peaks)
        self._is_written = True


class SlotHistory:
    """The last minute and the last hour of many series.

    Args:
        series: how many series there are.
    """

    def __init__(self, series: int) -> None:
        self._minute = SampledSlots(series, SECOND_NS)
        self._hour = SampledSlots(series, MINUTE_NS)

    def add(self, now_ns: int, values: Sequence[float], since_ns: int | None = None) -> None:
        """Add one sample of every series, as `SampledSlots.add` does.

        Args:
            now_ns: when, on a monotonic clock.
            values: one for each series.
            since_ns: the values are rates since then: seconds and minutes in between hold them too.
        """
        for ring, slot_ns in ((self._minute, SECOND_NS), (self._hour, MINUTE_NS)):
            if since_ns is not None:
                first = max(since_ns + slot_ns, now_ns - SLOTS * slot_ns)
                for between_ns in range(first, now_ns, slot_ns):
                    if between_ns // slot_ns < now_ns // slot_ns:
                        ring.add(between_ns, values)
            ring.add(now_ns, values)

    def minute(self, index: int) -> tuple[HistorySlot | None, ...]:
        """Return the seconds of the last minute of a series, oldest first."""
        return self._minute.series(index)

    def hour(self, index: int) -> tuple[HistorySlot | None, ...]:
        """Return the minutes of the last hour of a series, oldest first."""
        return self._hour.series(index)


def summary(slots: Sequence[HistorySlot | None]) -> HistorySlot | None:
    """Return mean and peak over slots, None if nothing was sampled."""
    sampled = [slot for slot in slots if slot is not None]
    if not sampled:
        return None
    mean = sum(slot.mean for slot in sampled) / len(sampled)
    return HistorySlot(mean, max(slot.peak for slot in sampled))
