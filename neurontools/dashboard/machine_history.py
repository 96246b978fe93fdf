"""The history of a machine: the last minute second by second and the last hour minute by minute.

Series are utilization, memory of devices, and executions and latency of processes. All series of a `SlotHistory` are
sampled together, so a slot of time is one row of numbers. However often samples come, it holds the same number of rows: a
slot keeps the mean and the peak of its samples.
"""

from __future__ import annotations

from array import array
from enum import StrEnum
from itertools import starmap
from math import isnan, nan
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from neurontools.machine.machine_view import ProcessKey, process_key, quantiles_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot


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


_Shape = tuple[tuple[int, tuple[int, ...]], ...]

Series = tuple[str, int]
"""`MACHINE`, ("device", index), ("memory", device's index) or ("core", machine-wide id)."""

_SHORTEST_NS = SECOND_NS // 2

MACHINE = ("machine", 0)
"""The series of the mean over all cores."""


class Measure(StrEnum):
    """What is recorded of a process: executions a second, and latency percentiles in seconds."""

    EXECUTIONS = "executions"
    P50 = "p50"
    P90 = "p90"
    P99 = "p99"
    P100 = "p100"


LATENCIES = {Measure.P50: 50, Measure.P90: 90, Measure.P99: 99, Measure.P100: 100}
"""The percentiles of the latency, in percent."""

_MEASURES = tuple(Measure)
_PERCENTS = tuple(LATENCIES.values())
_NOTHING = (0.0, *[nan] * len(LATENCIES))


class _Totals(NamedTuple):
    """Executions of a process since it registered, and the histogram of their latency."""

    executions: int
    latency_counts: Sequence[int]


class ProcessHistories:
    """The histories of all processes that use a device."""

    def __init__(self) -> None:
        self._series_by_process: dict[ProcessKey, ProcessSeries] = {}
        self._sampled_ns: int | None = None

    def add(self, before: Snapshot, after: Snapshot) -> None:
        """Add the interval between two snapshots of one machine."""
        if self._sampled_ns is None or after.taken_ns < self._sampled_ns:
            self._sampled_ns = before.taken_ns
            self._series_by_process = {
                process_key(process): ProcessSeries(process)
                for process in before.processes
                if process.uses_device
            }
        since_ns, now_ns = self._sampled_ns, after.taken_ns
        if now_ns - since_ns < _SHORTEST_NS or now_ns // SECOND_NS == since_ns // SECOND_NS:
            return
        series_by_process = {}
        for process in after.processes:
            if process.uses_device:
                key = process_key(process)
                series = series_by_process[key] = self._series_by_process.get(key) or ProcessSeries()
                series.add(process, since_ns, now_ns)
        self._series_by_process = series_by_process
        self._sampled_ns = now_ns

    def minute(self, process: ProcessKey, measure: Measure) -> tuple[HistorySlot | None, ...]:
        """Return the seconds of the last minute, oldest first, None where nothing was executed."""
        series = self._series_by_process.get(process)
        return series.seconds(measure) if series else (None,) * SLOTS

    def hour(self, process: ProcessKey, measure: Measure) -> tuple[HistorySlot | None, ...]:
        """Return the minutes of the last hour, oldest first.

        The mean of a percentile's slot is the percentile over the whole minute, its peak the highest second's.
        """
        series = self._series_by_process.get(process)
        return series.minutes(measure) if series else (None,) * SLOTS


class ProcessSeries:
    """The history of one process.

    Args:
        process: its state at the start of the recording, None for a later process.
    """

    def __init__(self, process: ProcessState | None = None) -> None:
        self._seconds = RingBuffer(len(_MEASURES))
        self._minutes = RingBuffer(2 * len(_MEASURES))
        self._process = process
        self._totals = _Totals(0, ()) if process is None else _totals(process)
        self._minute: int | None = None
        self._totals_ns = 0
        self._begin = self._totals
        self._begin_ns = 0
        self._peaks: tuple[float, ...] = _NOTHING

    def add(self, process: ProcessState, since_ns: int, now_ns: int) -> None:
        """Add the interval between two snapshots."""
        totals = self._totals if process is self._process else _totals(process)
        values = _measured(self._totals, totals, now_ns - since_ns)
        second, minute = now_ns // SECOND_NS, now_ns // MINUTE_NS
        for slot in range(max(since_ns // SECOND_NS + 1, second - SLOTS + 1), second + 1):
            self._seconds.put(slot, values)
        if minute != self._minute:
            self._write_minute()
            for slot in range(max(since_ns // MINUTE_NS + 1, minute - SLOTS + 1), minute):
                self._minutes.put(slot, (*values, *values))
            self._minute, self._begin, self._begin_ns, self._peaks = minute, self._totals, since_ns, values
        elif values is not _NOTHING:
            self._peaks = tuple(map(_larger, self._peaks, values))
        self._process, self._totals, self._totals_ns = process, totals, now_ns

    def seconds(self, measure: Measure) -> tuple[HistorySlot | None, ...]:
        """Return the last minute."""
        at = _MEASURES.index(measure)
        return self._seconds.slots(at, at)

    def minutes(self, measure: Measure) -> tuple[HistorySlot | None, ...]:
        """Return the last hour."""
        self._write_minute()
        at = _MEASURES.index(measure)
        return self._minutes.slots(at, at + len(_MEASURES))

    def _write_minute(self) -> None:
        # Percentiles of the whole minute; a mean of the seconds' percentiles would not be a percentile.
        if self._minute is not None:
            whole = _measured(self._begin, self._totals, self._totals_ns - self._begin_ns)
            self._minutes.put(self._minute, (*whole, *self._peaks))


def _totals(process: ProcessState) -> _Totals:
    return _Totals(sum(use.executions for use in process.cores), process.latency_counts)


def _measured(before: _Totals, after: _Totals, interval_ns: int) -> tuple[float, ...]:
    if after is before:
        return _NOTHING
    executions_s = max(0, after.executions - before.executions) * 1e9 / interval_ns
    counts = after.latency_counts
    if before.latency_counts:
        counts = list(map(sub, counts, before.latency_counts))
        if min(counts) < 0:
            counts = [max(0, count) for count in counts]
    if not any(counts):
        return executions_s, *_NOTHING[1:]
    return executions_s, *quantiles_s(counts, _PERCENTS)


def _larger(left: float, right: float) -> float:
    return right if right > left or isnan(left) else left


class MachineHistory:
    """The last minute and the last hour of a machine; every value is a share (0..1)."""

    def __init__(self) -> None:
        self.processes = ProcessHistories()
        """The same of each process: executions and their latency."""
        self._shape: _Shape | None = None
        self._places: dict[Series, int] = {}
        self._cores: tuple[tuple[int, ...], ...] = ()
        self._history = SlotHistory(0)
        self._last: tuple[Mapping[int, float], tuple[DeviceState, ...]] | None = None
        self._values: list[float] = []

    def add(self, before: Snapshot, after: Snapshot, utilization: Mapping[int, float]) -> None:
        """Add the interval between two snapshots; a machine with other devices starts a new history.

        Args:
            before: start of the interval.
            after: the snapshot at its end.
            utilization: of every core over the interval, by machine-wide id.
        """
        self._find_shape(after.devices)
        self.processes.add(before, after)
        self._history.add(
            after.taken_ns, self._values_of(utilization, after.devices), since_ns=before.taken_ns
        )

    def minute(self, series: Series) -> tuple[HistorySlot | None, ...]:
        """Return the seconds of the last minute, oldest first; nothing for a series that is not known."""
        place = self._places.get(series)
        return () if place is None else self._history.minute(place)

    def hour(self, series: Series) -> tuple[HistorySlot | None, ...]:
        """Return the minutes of the last hour, oldest first; nothing for a series that is not known."""
        place = self._places.get(series)
        return () if place is None else self._history.hour(place)

    def _find_shape(self, devices: tuple[DeviceState, ...]) -> None:
        shape = tuple([(device.index, device.core_ids) for device in devices])
        if shape != self._shape:
            self._begin(shape)

    def _values_of(self, utilization: Mapping[int, float], devices: tuple[DeviceState, ...]) -> list[float]:
        # A machine that rests hands in the same objects again.
        last = self._last
        if last is not None and last[0] is utilization and last[1] is devices:
            return self._values
        self._last = (utilization, devices)
        per_device = [[utilization.get(core, 0.0) for core in cores] for cores in self._cores]
        means = [sum(values) / len(values) if values else 0.0 for values in per_device]
        cores = [value for values in per_device for value in values]
        memory = [
            min(1.0, device.memory_used_bytes / device.memory_bytes) if device.memory_bytes else 0.0
            for device in devices
        ]
        mean = sum(cores) / len(cores) if cores else 0.0
        self._values = [mean, *means, *memory, *cores]
        return self._values

    def _begin(self, shape: _Shape) -> None:
        self._shape = shape
        self._cores = tuple(tuple(sorted(cores)) for _, cores in shape)
        devices = [index for index, _ in shape]
        names = [
            MACHINE,
            *(("device", index) for index in devices),
            *(("memory", index) for index in devices),
        ]
        names += [("core", core) for cores in self._cores for core in cores]
        self._places = {series: place for place, series in enumerate(names)}
        self._history = SlotHistory(len(names))
        self._last = None
        self.processes = ProcessHistories()
