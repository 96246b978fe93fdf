"""The last minute second by second and the last hour minute by minute, of many series at once.

All series of a `History` are sampled together, so a slot of time is one row of numbers. However often samples come,
it holds the same number of rows: a slot keeps the mean and the peak of its samples.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
SLOTS = 60

_FLOAT = "f"


@dataclass(frozen=True, slots=True)
class Slot:
    """The samples of one series in one slot of time, in the unit of the samples."""

    mean: float
    peak: float


class Ring:
    """The last slots of time of many series.

    Args:
        series: how many series there are.
        slot_ns: length of a slot.
        slots: how many slots are kept, the one that is being filled among them.
    """

    def __init__(self, series: int, slot_ns: int, slots: int = SLOTS) -> None:
        self._series = series
        self._slot_ns = slot_ns
        self._slots = slots
        self._full: deque[tuple[array[float], array[float]] | None] = deque(maxlen=slots - 1)
        self._slot: int | None = None
        self._sums: list[float] = []
        self._peaks: list[float] = []
        self._samples = 0
        self._last: Sequence[float] | None = None
        self._again = 0  # samples like the last one that are not in the sums yet

    def add(self, now_ns: int, values: Sequence[float]) -> None:
        """Take in one sample of every series; one from before the newest slot is ignored.

        Args:
            now_ns: when, on a clock that does not go back.
            values: one for each series; who hands in the same object again says that nothing changed.

        Raises:
            ValueError: there are more or fewer values than series.
        """
        if len(values) != self._series:
            raise ValueError(f"{len(values)} values for {self._series} series")
        slot = now_ns // self._slot_ns
        if self._slot is None or slot > self._slot:
            self._advance(slot)
            self._sums, self._peaks, self._samples = list(values), list(values), 1
            self._last = values
        elif slot == self._slot and values is self._last:
            self._samples += 1
            self._again += 1
        elif slot == self._slot:
            self._catch_up()
            self._last = values
            self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]
            self._peaks = list(starmap(max, zip(self._peaks, values, strict=True)))
            self._samples += 1

    def series(self, index: int) -> tuple[Slot | None, ...]:
        """Return the slots of a series, oldest first; None where nothing was sampled."""
        self._catch_up()
        rows: list[Slot | None] = [None] * (self._slots - 1 - len(self._full))
        rows += [None if row is None else Slot(row[0][index], row[1][index]) for row in self._full]
        if self._samples:
            rows.append(Slot(self._sums[index] / self._samples, self._peaks[index]))
        else:
            rows.append(None)
        return tuple(rows)

    def _catch_up(self) -> None:
        if self._again and self._last is not None:
            self._sums = [
                total + self._again * value for total, value in zip(self._sums, self._last, strict=True)
            ]
            self._again = 0

    def _advance(self, slot: int) -> None:
        self._catch_up()
        if self._slot is not None:
            means = array(_FLOAT, [total / self._samples for total in self._sums])
            self._full.append((means, array(_FLOAT, self._peaks)))
            self._full.extend([None] * min(slot - self._slot - 1, self._slots))
        self._slot = slot


class History:
    """The last minute and the last hour of many series.

    Args:
        series: how many series there are.
    """

    def __init__(self, series: int) -> None:
        self._minute = Ring(series, SECOND_NS)
        self._hour = Ring(series, MINUTE_NS)

    def add(self, now_ns: int, values: Sequence[float], since_ns: int | None = None) -> None:
        """Take in one sample of every series, as in `Ring.add`.

        Args:
            now_ns: when, on a clock that does not go back.
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

    def minute(self, index: int) -> tuple[Slot | None, ...]:
        """Return the seconds of the last minute of a series, oldest first."""
        return self._minute.series(index)

    def hour(self, index: int) -> tuple[Slot | None, ...]:
        """Return the minutes of the last hour of a series, oldest first."""
        return self._hour.series(index)


def summary(slots: Sequence[Slot | None]) -> Slot | None:
    """Return mean and peak over slots, None when none was sampled."""
    sampled = [slot for slot in slots if slot is not None]
    if not sampled:
        return None
    mean = sum(slot.mean for slot in sampled) / len(sampled)
    return Slot(mean, max(slot.peak for slot in sampled))
