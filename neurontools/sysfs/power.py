"""Power utilization of the devices: modelled as the share of time in which their cores were executing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.snapshot import busy_share
from neurontools.sysfs import formats

if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot

_WINDOW_S = 60.0
VALID, NO_DATA = "POWER_STATUS_VALID", "POWER_STATUS_NO_DATA"


class PowerMeter:
    """Watches snapshots and tells lowest, highest and mean utilization of each device over a minute.

    Before the second snapshot there is no data; then the line is written once a minute, as the driver's is.
    """

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._percent: dict[int, list[float]] = {}
        self._lines: dict[int, str] = {}
        self._written_s = 0.0

    def update(self, snapshot: Snapshot) -> None:
        """Take in the next snapshot."""
        before, self._before = self._before, snapshot
        if before is None or before.started_unix_s != snapshot.started_unix_s:
            self._percent, self._lines = {}, {}
            return
        shares = busy_share(before, snapshot)
        for device in snapshot.devices:
            mean = sum(shares[core] for core in device.core_ids) / len(device.core_ids)
            self._percent.setdefault(device.index, []).append(100.0 * mean)
        if not self._lines or snapshot.taken_unix_s - self._written_s >= _WINDOW_S:
            self._write(snapshot.taken_unix_s)

    def line(self, device: int, unix_s: float) -> str:
        """Return the line of a device; `unix_s` is the time to show where there is no data yet."""
        return self._lines.get(device) or formats.power(NO_DATA, int(unix_s), 0.0, 0.0, 0.0)

    def _write(self, unix_s: float) -> None:
        self._written_s = unix_s
        self._lines = {
            device: formats.power(VALID, int(unix_s), min(seen), max(seen), sum(seen) / len(seen))
            for device, seen in self._percent.items()
        }
        self._percent = {}
