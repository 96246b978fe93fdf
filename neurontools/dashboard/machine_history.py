"""The history of a whole machine: utilization of it, of its devices and cores, memory use of its devices, its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.dashboard.history import History
from neurontools.dashboard.process_history import ProcessHistories

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.dashboard.history import Slot
    from neurontools.machine.snapshot import DeviceState, Snapshot

_Shape = tuple[tuple[int, tuple[int, ...]], ...]

MACHINE = ("machine", 0)
"""The series of the mean over all cores."""

Series = tuple[str, int]
"""`MACHINE`, ("device", index), ("memory", device's index) or ("core", machine-wide id)."""


class MachineHistory:
    """The last minute and the last hour of a machine; every value is a share (0..1)."""

    def __init__(self) -> None:
        self.processes = ProcessHistories()
        """The same of each process: executions and their latency."""
        self._shape: _Shape | None = None
        self._places: dict[Series, int] = {}
        self._cores: tuple[tuple[int, ...], ...] = ()
        self._history = History(0)
        self._last: tuple[Mapping[int, float], tuple[DeviceState, ...]] | None = None
        self._values: list[float] = []

    def add(self, before: Snapshot, after: Snapshot, utilization: Mapping[int, float]) -> None:
        """Take in the interval between two snapshots; a machine of another shape begins a new history.

        Args:
            before: where the interval begins.
            after: where it ends.
            utilization: of every core over the interval, by machine-wide id.
        """
        self._find_shape(after.devices)
        self.processes.add(before, after)
        self._history.add(
            after.taken_ns, self._values_of(utilization, after.devices), since_ns=before.taken_ns
        )

    def minute(self, series: Series) -> tuple[Slot | None, ...]:
        """Return the seconds of the last minute, oldest first; nothing for a series that is not known."""
        place = self._places.get(series)
        return () if place is None else self._history.minute(place)

    def hour(self, series: Series) -> tuple[Slot | None, ...]:
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
        self._history = History(len(names))
        self._last = None
        self.processes = ProcessHistories()
