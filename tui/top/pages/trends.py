"""The last minute of what the machine keeps no history of, second by second, recorded while it is looked at."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from neurontools.dashboard.machine_history import SECOND_NS, SLOTS, HistorySlot
from neurontools.machine.machine_view import process_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.dashboard.process_rows import ProcessJob, ProcessRow
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.tui.top.model import TopModel

TREND = 12
"""Cells of the sparkline of a row."""


class _WatchedMinute:
    """Seconds without a look repeat the value before them, unless `forget` says that they were not watched."""

    def __init__(self) -> None:
        self._second = -1
        self._is_watched = False

    def forget(self) -> None:
        """Take what comes before the next look from the history of the machine."""
        self._is_watched = False

    def _step(self, taken_ns: int) -> int | None:
        """Return how many seconds were skipped since the last look, -1 in the same second, None if values are lost."""
        second = taken_ns // SECOND_NS
        skipped, was_watched = second - self._second - 1, self._is_watched
        self._second, self._is_watched = second, True
        return skipped if skipped in {-1, 0} or (was_watched and 0 < skipped <= SLOTS) else None


class Trends(_WatchedMinute):
    """The utilization of each process."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[ProcessKey, deque[float | None]] = {}

    def look(self, model: TopModel) -> None:
        """Record the current second; what came before is taken from the history of the cores."""
        snapshot = model.shown.snapshot
        skipped = self._step(snapshot.taken_ns) if snapshot else -1
        if skipped == -1:
            return
        former, self._values = self._values, {}
        for row in model.shown.processes:
            key = process_key(row.process)
            values = former.get(key)
            if values is None or skipped is None:
                values = deque(_from_cores(model, row), maxlen=SLOTS)
            else:
                values.extend([values[-1] if values else None] * skipped)
                values.append(row.utilization)
            self._values[key] = values

    def of(self, row: ProcessRow) -> Sequence[float | None]:
        """Return the last minute of a process."""
        return self._values.get(process_key(row.process), ())

    def of_job(self, job: ProcessJob) -> Sequence[float | None]:
        """Return the last minute of a job: the mean of its ranks."""
        columns = [[*self.of(row)][-TREND:] for row in job.rows]
        length = min(map(len, columns), default=0)
        return [_mean([column[len(column) - length + at] for column in columns]) for at in range(length)]


def _from_cores(model: TopModel, row: ProcessRow) -> Iterator[float | None]:
    series = [model.history.minute(("core", use.core)) for use in row.process.cores]
    age_s = max(1, int(row.age_s))
    for at in range(SLOTS if series else 0):
        slots = [slots[at] for slots in series if slots]
        known = [slot.mean for slot in slots if slot]
        yield sum(known) / len(known) if known and at >= SLOTS - age_s else None


class MemoryTrend(_WatchedMinute):
    """The mean memory use of all devices that are there."""

    def __init__(self) -> None:
        super().__init__()
        self._slots: deque[HistorySlot | None] = deque(maxlen=SLOTS)

    def look(self, model: TopModel) -> Sequence[HistorySlot | None]:
        """Add the current second; what came before is taken from the history of the devices."""
        snapshot = model.shown.snapshot
        if snapshot is None:
            return ()
        skipped = self._step(snapshot.taken_ns)
        if skipped is None:
            self._slots = deque(_memory_minute(model), maxlen=SLOTS)
        elif skipped >= 0:
            self._slots.extend([self._slots[-1] if self._slots else None] * skipped)
            used = [
                one.memory_used_bytes / one.memory_bytes
                for one in snapshot.devices
                if not one.lost and one.memory_bytes
            ]
            mean = sum(used) / len(used) if used else 0.0
            self._slots.append(HistorySlot(mean, max(used, default=0.0)))
        return tuple(self._slots)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _memory_minute(model: TopModel) -> Sequence[HistorySlot | None]:
    devices = model.shown.snapshot.devices if model.shown.snapshot else ()
    series = [model.history.minute(("memory", device.index)) for device in devices if not device.lost]
    found: list[HistorySlot | None] = []
    for slots in zip(*series, strict=True) if all(series) else ():
        known = [slot for slot in slots if slot]
        mean = sum(slot.mean for slot in known) / len(known) if known else 0.0
        found.append(HistorySlot(mean, max(slot.peak for slot in known)) if known else None)
    return found
