"""Totals of a machine's cores and devices, what a reset subtracts from them, peaks of memory, and power utilization."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from operator import add, attrgetter
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.files import write_atomic
from neurontools.errors import NeuronToolsError
from neurontools.machine import codec
from neurontools.machine.client import Client
from neurontools.machine.machine_names import unknown_index
from neurontools.machine.snapshot import MemoryCategory, MemoryUse, add_counts, busy_share
from neurontools.sysfs.layout import format_power

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from neurontools.machine.snapshot import CoreTotals, CoreUse, Snapshot

Amounts = tuple[int, ...]

ON_DEVICE = (
    MemoryCategory.CONSTANTS,
    MemoryCategory.MODEL_CODE,
    MemoryCategory.MODEL_SHARED_SCRATCHPAD,
    MemoryCategory.RUNTIME_MEMORY,
    MemoryCategory.TENSORS,
)
"""The categories that lie on a device, in the order of `CoreSum.memory`."""

ON_HOST = (
    MemoryCategory.APPLICATION_MEMORY,
    MemoryCategory.CONSTANTS,
    MemoryCategory.DMA_BUFFERS,
    MemoryCategory.TENSORS,
)
"""The categories of host memory, in the order of what `host_sums` returns; the last number there is all others."""

_WINDOW_S = 60.0
VALID, NO_DATA = "POWER_STATUS_VALID", "POWER_STATUS_NO_DATA"
_NO_MEMORY: Amounts = (0,) * len(ON_DEVICE)
_NO_HOST_MEMORY: Amounts = (0,) * (len(ON_HOST) + 1)
_on_device = attrgetter(*map(str, ON_DEVICE))
_on_host = attrgetter(*map(str, ON_HOST))


@dataclass(frozen=True, slots=True)
class CoreSum:
    """One logical core. `failures` are pairs of NRT status number and executions; `host_bytes` are its buffers there."""

    busy_ns: int = 0
    executions: int = 0
    flops: int = 0
    model_loads: int = 0
    failures: tuple[tuple[int, int], ...] = ()
    memory: Amounts = _NO_MEMORY
    host_bytes: int = 0


NOTHING = CoreSum()


def core_sums(snapshot: Snapshot) -> dict[int, CoreSum]:
    """Return what was done on each logical core and what it holds, by machine-wide id; cores of which there is nothing are left out."""
    sums = {totals.core: _exited_sum(totals) for totals in snapshot.core_totals}
    for process in snapshot.processes:
        for use in process.cores:
            known = sums.get(use.core)
            sums[use.core] = _running_sum(use) if known is None else _add(known, _running_sum(use))
    return sums


def host_sums(snapshot: Snapshot) -> dict[int, Amounts]:
    """Return the host memory of each device by category; what a process has is divided among the devices of its cores."""
    device_of = {core: device.index for device in snapshot.devices for core in device.core_ids}
    sums: dict[int, Amounts] = {device.index: _NO_HOST_MEMORY for device in snapshot.devices}
    for process in snapshot.processes:
        for use in process.cores:
            device = device_of.get(use.core)
            buffers = use.memory.dma_buffers, use.memory.application_memory
            if device is not None and any(buffers):
                own = MemoryUse(dma_buffers=buffers[0], application_memory=buffers[1])
                sums[device] = tuple(map(add, sums[device], _host_amounts(own)))
        devices = sorted({device_of[use.core] for use in process.cores if use.core in device_of})
        amounts = _host_amounts(process.host_memory)
        for place, device in enumerate(devices):
            share = tuple([portion(amount, place, len(devices)) for amount in amounts])
            sums[device] = tuple(map(add, sums[device], share))
    return sums


def portion(amount: int, place: int, parts: int) -> int:
    """Return one of several nearly equal parts of a number; together they are the number."""
    return amount // parts + (place < amount % parts)


class PowerMeter:
    """Lowest, highest and mean power utilization of each device over a minute.

    Modelled as the share of time in which the device's cores were executing.

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
        return self._lines.get(device) or format_power(NO_DATA, int(unix_s), 0.0, 0.0, 0.0)

    def _write(self, unix_s: float) -> None:
        self._written_s = unix_s
        self._lines = {
            device: format_power(VALID, int(unix_s), min(seen), max(seen), sum(seen) / len(seen))
            for device, seen in self._percent.items()
        }
        self._percent = {}


def _exited_sum(totals: CoreTotals) -> CoreSum:
    return CoreSum(totals.busy_ns, totals.executions, totals.flops, totals.model_loads, totals.failures)


def _running_sum(use: CoreUse) -> CoreSum:
    memory = use.memory
    host_bytes = memory.dma_buffers + memory.application_memory
    return CoreSum(
        use.busy_ns, use.executions, use.flops, use.model_loads, use.failures, _on_device(memory), host_bytes
    )


def _add(left: CoreSum, right: CoreSum) -> CoreSum:
    return CoreSum(
        left.busy_ns + right.busy_ns,
        left.executions + right.executions,
        left.flops + right.flops,
        left.model_loads + right.model_loads,
        add_counts(left.failures, right.failures),
        tuple(map(add, left.memory, right.memory)),
        left.host_bytes + right.host_bytes,
    )


def _host_amounts(memory: MemoryUse) -> Amounts:
    known: Amounts = _on_host(memory)
    return (*known, memory.total_bytes - sum(known))


_FILE = "sysfs-baseline.json"


@dataclass(frozen=True, slots=True)
class CounterBaseline:
    """Counters of the cores at the last reset, which the tree subtracts.

    `cores` are by machine-wide id, `instance_id` and `lnc` those of the machine that they belong to.
    """

    instance_id: str = ""
    lnc: int = 0
    cores: tuple[tuple[int, CoreSum], ...] = ()

    def subtract_from(self, sums: Mapping[int, CoreSum], snapshot: Snapshot) -> Mapping[int, CoreSum]:
        """Return what the cores counted since the reset; a core whose counters began anew keeps its numbers."""
        if not self.cores or (self.instance_id, self.lnc) != (snapshot.instance_id, snapshot.lnc):
            return sums
        shown = dict(sums)
        for core, start in self.cores:
            current = sums.get(core)
            if current is not None and current.executions >= start.executions:
                shown[core] = _difference(current, start)
        return shown


class BaselineReader:
    """The baseline of a machine, read again when it was changed.

    Args:
        machine: the machine's name.
    """

    def __init__(self, machine: str) -> None:
        self._path = _path(machine)
        self._version: tuple[int, int] | None = None
        self._baseline = CounterBaseline()

    def read(self) -> CounterBaseline:
        """Return the current baseline, the same object as long as it was not changed."""
        try:
            found = os.stat(self._path)
        except OSError:
            version = None
        else:
            version = found.st_ino, found.st_mtime_ns
        if version != self._version:
            self._version = version
            self._baseline = _load(self._path) if version else CounterBaseline()
        return self._baseline


class MemoryPeaks:
    """The highest value that each path has had."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def update(self, path: str, amount: int) -> int:
        """Take in the present value and return the peak."""
        peak = max(self._highest.get(path, 0), amount)
        self._highest[path] = peak
        return peak

    def clear(self) -> None:
        """Begin anew."""
        self._highest.clear()


def reset_counters(machine: str, device: int | None = None) -> tuple[int, ...]:
    """Zero the counters of a machine's tree: memory errors for all tools, executions and the like in the tree alone.

    Args:
        machine: the machine's name.
        device: index of the device, None for all.

    Returns:
        The devices whose counters were zeroed.

    Raises:
        NeuronToolsError: the machine does not run, refuses, or has no such device.
    """
    with Client.connect(machine) as client:
        snapshot = client.snapshot()
        present = [state for state in snapshot.devices if not state.lost]
        if not present:
            raise NeuronToolsError("all devices are lost", "neurontools fault list")
        devices = [selected for selected in present if device in {None, selected.index}]
        if not devices:
            assert device is not None
            raise NeuronToolsError(*unknown_index("device", device, [state.index for state in present]))
        for selected in devices:
            client.call("reset_hardware", device=selected.index)
    cores = {core for selected in devices for core in selected.core_ids}
    _save(_path(machine), _with_reset(_load(_path(machine)), snapshot, cores))
    return tuple(selected.index for selected in devices)


def _with_reset(baseline: CounterBaseline, snapshot: Snapshot, cores: Collection[int]) -> CounterBaseline:
    kept = (
        baseline.cores if (baseline.instance_id, baseline.lnc) == (snapshot.instance_id, snapshot.lnc) else ()
    )
    reset = {**dict(kept), **{core: sums for core, sums in core_sums(snapshot).items() if core in cores}}
    return CounterBaseline(snapshot.instance_id, snapshot.lnc, tuple(sorted(reset.items())))


def _difference(current: CoreSum, start: CoreSum) -> CoreSum:
    before = dict(start.failures)
    failures = ((status, count - before.get(status, 0)) for status, count in current.failures)
    return replace(
        current,
        busy_ns=max(0, current.busy_ns - start.busy_ns),
        executions=current.executions - start.executions,
        flops=max(0, current.flops - start.flops),
        model_loads=max(0, current.model_loads - start.model_loads),
        failures=tuple((status, count) for status, count in failures if count > 0),
    )


def _path(machine: str) -> str:
    return f"{paths.state_dir()}/{machine}/{_FILE}"


def _load(path: str) -> CounterBaseline:
    return codec.read_file(path, CounterBaseline) or CounterBaseline()


def _save(path: str, baseline: CounterBaseline) -> None:
    paths.make_private(os.path.dirname(path))
    write_atomic(path, json.dumps(asdict(baseline)), mode=0o600, sync=False)
