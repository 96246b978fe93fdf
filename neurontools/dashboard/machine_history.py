"""The history of a machine: utilization, memory of devices, and executions and latency of processes."""

from __future__ import annotations

from enum import StrEnum
from math import isnan, nan
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from neurontools.dashboard.history import MINUTE_NS, SECOND_NS, SLOTS, HistorySlot, RingBuffer, SlotHistory
from neurontools.machine.machine_view import process_key, quantiles_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.machine.machine_view import ProcessKey
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

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
