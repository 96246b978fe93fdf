"""Counter resets of a machine's tree, and peaks of its memory use."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.files import write_atomic
from neurontools.errors import NeuronToolsError
from neurontools.machine import codec
from neurontools.machine.client import Client
from neurontools.machine.machine_names import unknown_index
from neurontools.sysfs.aggregates import CoreSum, core_sums

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from neurontools.machine.snapshot import Snapshot

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
