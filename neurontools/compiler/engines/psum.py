"""PSUM over time: banks that hold results of the Tensor engine from their first column to their eviction.

A product that fills more banks than there are goes on only as results are read. Tiles of one operator's products run
among each other, so one of them never waits for another; the product of the next operator waits for a free bank.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

_NOTHING = -1
_LOOKBACK = 32  # products whose results may still be there


@dataclass(slots=True)
class PsumValue:
    """The results of a group of products.

    Args:
        operator: whose products.
        banks: results of one bank each.
        start_ns: when the first is begun.
        end_ns: when the last is complete.
        reader: operator that reads them besides their own, -1 for none.
        evictor: the group that reads the last one, -1 as long as none does.
        opened_ns: when the first is being read.
        evicted_ns: when the last was read.
    """

    operator: int
    banks: int
    start_ns: float
    end_ns: float
    reader: int = _NOTHING
    evictor: int = _NOTHING
    opened_ns: float = 0.0
    evicted_ns: float = 0.0

    @property
    def reading_ns(self) -> float:
        """The time between two results that are read."""
        return (self.evicted_ns - self.opened_ns) / self.banks

    def in_flight(self, banks: int) -> int:
        """Return the most banks that it holds at once, of those that there are."""
        made_ns = (self.end_ns - self.start_ns) / self.banks
        before = (self.opened_ns - self.start_ns) / made_ns if made_ns else self.banks
        after = (self.evicted_ns - self.end_ns) / self.reading_ns if self.reading_ns else self.banks
        return min(max(1, round(max(before, after) + 0.5)), self.banks, banks)


class PsumBanks:
    """The banks of a core and the values in them, in the order in which products were placed."""

    def __init__(self, banks: int) -> None:
        self.banks = banks
        self.values: list[PsumValue] = []
        self.of_group: dict[int, PsumValue] = {}

    def make(self, group: int, value: PsumValue) -> None:
        """Note what a group of products makes."""
        self.values.append(value)
        self.of_group[group] = value

    def read(self, group: int, made: int, operator: int, start_ns: float, end_ns: float) -> None:
        """Note that a group reads the results of a group of products."""
        value = self.of_group[made]
        if value.operator != operator:
            if value.reader not in {_NOTHING, operator}:
                return  # a later reader finds them in SBUF
            value.reader = operator
        if value.evictor == _NOTHING:
            value.opened_ns = start_ns
        value.opened_ns = min(value.opened_ns, start_ns)
        if end_ns > value.evicted_ns:
            value.evictor, value.evicted_ns = group, end_ns

    def free(self, operator: int) -> tuple[float, int]:
        """Return when a product of an operator finds a free bank, and the group that frees it.

        Its first result takes the place of the last but seven before it (of eight banks).
        """
        later = 0
        for value in self.values[: -_LOOKBACK - 1 : -1]:
            if value.operator == operator or value.evictor == _NOTHING:
                continue
            if later + value.banks >= self.banks:
                return value.evicted_ns - (self.banks - 1 - later) * value.reading_ns, value.evictor
            later += value.banks
        return 0.0, _NOTHING

    def complete_ns(self, value: PsumValue) -> float:
        """Return when the last result of a product is complete, which needs a bank that was read."""
        if value.evictor == _NOTHING or value.banks <= self.banks:
            return value.end_ns
        made_ns = (value.end_ns - value.start_ns) / value.banks
        waited = value.evicted_ns - self.banks * value.reading_ns + made_ns
        return max(value.end_ns, min(waited, value.evicted_ns))

    def use(self) -> list[tuple[float, int]]:
        """Return the banks in use from each time on, in order of time."""
        changes: dict[float, int] = {}
        for value in self.values:
            if value.evictor == _NOTHING:
                continue
            held = value.in_flight(self.banks)
            changes[value.start_ns] = changes.get(value.start_ns, 0) + held
            for left in range(held):
                time_ns = max(value.end_ns, value.evicted_ns - left * value.reading_ns)
                changes[time_ns] = changes.get(time_ns, 0) - 1
        times = sorted(changes)
        levels = accumulate(changes[time_ns] for time_ns in times)
        return [(time_ns, min(level, self.banks)) for time_ns, level in zip(times, levels, strict=True)]
