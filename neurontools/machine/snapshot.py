"""The one value that every reader of a machine sees: a frozen tree, its JSON form, and rates between two of them.

Counters are cumulative since the process registered (or the machine was made); rates come from two snapshots with
`busy_share`. Times are CLOCK_MONOTONIC nanoseconds of the host unless a name says otherwise.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any

from neurontools.machine.fast_values import fast_constructor
from neurontools.machine.hardware import NO_ERRORS, CoreTotals, HardwareCounters, core_totals_from_json, pairs
from neurontools.machine.memory import MemoryUse
from neurontools.machine.ultraserver import UltraServer, ultraserver_from_json

LATENCY_BUCKETS = 64


@dataclass(frozen=True, slots=True)
class ModelState:
    """A loaded model. `memory` is its device memory on core `core` (machine-wide logical id)."""

    model_id: int
    name: str
    uuid: str
    core: int
    running: bool
    memory: MemoryUse


@dataclass(frozen=True, slots=True)
class CoreUse:
    """What one process did on one core that it claims.

    `busy_ns` includes the execution under way up to the snapshot's `taken_ns`. `flops` are those of the cost model.
    `gpsimd_ns` is modelled time of custom operators. `failures` are pairs of NRT status number and executions that
    ended so; `executions` counts those too. `model_loads` counts the models that were ever loaded onto it.
    """

    core: int
    busy_ns: int
    executions: int
    flops: int
    gpsimd_ns: int
    executing: bool
    memory: MemoryUse
    model_loads: int = 0
    failures: tuple[tuple[int, int], ...] = ()


UNKNOWN_UID = -1
"""The user of a process whose source tells none, such as a report of neuron-monitor."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A registered process.

    `status_counts` maps NRT status numbers to executions that ended so. `latency_counts` is a histogram of wall
    time: bucket i counts executions of 2**(i/2) to 2**((i+1)/2) microseconds. `stale` is set when the telemetry
    page could not be read and the last good values are shown. `origin` is "live", "synthetic", "recorded" or
    "remote"; `cpu_user_ns` and `cpu_system_ns` are host CPU time of those that are not live, whose pid no
    operating system knows.
    """

    pid: int
    start_ticks: int
    uid: int
    command: str
    tag: str
    runtime_version: str
    origin: str
    uses_device: bool
    cores: tuple[CoreUse, ...]
    host_memory: MemoryUse
    models: tuple[ModelState, ...]
    status_counts: tuple[tuple[int, int], ...]
    latency_counts: tuple[int, ...]
    registered_ns: int
    stale: bool = False
    cpu_user_ns: int = 0
    cpu_system_ns: int = 0


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One chip. `core_ids` are the machine-wide logical ids; `connected_to` is None on single-device instances.

    `lost` is set for a device that fell off the bus, `links_down` are the neighbours whose link is broken, which
    `connected_to` does not name. `unhealthy` are the components that are broken, in the driver's words. `power` is the
    lowest, highest and mean power of the last minute as shares (0..1) of the most that the device may take, None where
    no driver tells.
    """

    index: int
    bdf: str
    cpu_affinity: str
    numa_node: str
    connected_to: tuple[int, ...] | None
    core_ids: tuple[int, ...]
    memory_bytes: int
    memory_used_bytes: int
    hardware: HardwareCounters = NO_ERRORS
    lost: bool = False
    links_down: tuple[int, ...] = ()
    unhealthy: tuple[str, ...] = ()
    power: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine at one moment. `source` is "sim", "recording" or "real"; `lnc` is 1 where it does not apply.

    `core_totals` tells of the processes that are gone, only of cores on which some did anything.
    """

    machine: str
    source: str
    instance_type: str
    instance_id: str
    lnc: int
    lnc_applies: bool
    neuroncore_version: str
    taken_ns: int
    taken_unix_s: float
    started_unix_s: float
    devices: tuple[DeviceState, ...]
    processes: tuple[ProcessState, ...]
    lifetime: tuple[tuple[str, int], ...] = field(default=())
    core_totals: tuple[CoreTotals, ...] = field(default=())
    ultraserver: UltraServer | None = None

    def core_owner(self, core: int) -> ProcessState | None:
        """Return the process that claims a core, by machine-wide logical id."""
        for process in self.processes:
            for use in process.cores:
                if use.core == core:
                    return process
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, the same in the protocol, in recordings and in `--json` outputs."""
        return asdict(self)


def encode(value: object) -> str:
    """Return the JSON text of a tree of dataclasses: what `to_json` gives, without making the tree of dicts first."""
    return json.dumps(value, default=_fields_of, separators=(",", ":"))


def snapshot_from_json(data: dict[str, Any]) -> Snapshot:
    """Return the snapshot of its JSON form.

    Raises:
        KeyError, TypeError, ValueError: the value is not a snapshot of this version.
    """
    fields = snapshot_fields_from_json(data)
    fields["processes"] = tuple([process_from_json(process) for process in data["processes"]])
    return Snapshot(**fields)


def snapshot_fields_from_json(data: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a snapshot, but for `processes`, of their JSON form; those that are not there are left out."""
    fields = dict(data)
    if "devices" in data:
        fields["devices"] = tuple([device_from_json(device) for device in data["devices"]])
    if "lifetime" in data:
        fields["lifetime"] = tuple([(name, count) for name, count in data["lifetime"]])
    if "core_totals" in data:
        fields["core_totals"] = tuple([core_totals_from_json(totals) for totals in data["core_totals"]])
    if data.get("ultraserver") is not None:
        fields["ultraserver"] = ultraserver_from_json(data["ultraserver"])
    return fields


def busy_share(before: Snapshot, after: Snapshot) -> dict[int, float]:
    """Return for every core of the machine the share (0..1) of wall time between two snapshots spent executing."""
    wall_ns = after.taken_ns - before.taken_ns
    shares = {core: 0.0 for device in after.devices for core in device.core_ids}
    if wall_ns <= 0:
        return shares
    earlier = {
        (process.pid, process.start_ticks, use.core): use.busy_ns
        for process in before.processes
        for use in process.cores
    }
    for process in after.processes:
        for use in process.cores:
            busy_ns = use.busy_ns - earlier.get((process.pid, process.start_ticks, use.core), 0)
            shares[use.core] = min(1.0, max(0.0, busy_ns / wall_ns))
    return shares


def device_from_json(data: dict[str, Any]) -> DeviceState:
    """Return a device of its JSON form; raises as `snapshot_from_json`."""
    fields = dict(data)
    connected = data["connected_to"]
    fields["connected_to"] = None if connected is None else tuple(connected)
    fields["core_ids"] = tuple(data["core_ids"])
    fields["hardware"] = HardwareCounters(**data.get("hardware", {}))
    fields["links_down"] = tuple(data.get("links_down", ()))
    fields["unhealthy"] = tuple(data.get("unhealthy", ()))
    power = data.get("power")
    fields["power"] = None if power is None else tuple(power)
    return DeviceState(**fields)


def process_from_json(data: dict[str, Any]) -> ProcessState:
    """Return a process of its JSON form; raises as `snapshot_from_json`."""
    return ProcessState(**process_fields_from_json(data))


def process_fields_from_json(data: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a process of their JSON form; those that are not there are left out."""
    fields = dict(data)
    if "cores" in data:
        fields["cores"] = tuple([core_use_from_json(use) for use in data["cores"]])
    if "models" in data:
        fields["models"] = tuple([_model(model) for model in data["models"]])
    if "host_memory" in data:
        fields["host_memory"] = _memory(data["host_memory"])
    if "status_counts" in data:
        fields["status_counts"] = pairs(data["status_counts"])
    if "latency_counts" in data:
        fields["latency_counts"] = tuple(data["latency_counts"])
    return fields


def core_use_from_json(data: dict[str, Any]) -> CoreUse:
    """Return what a process did on a core of its JSON form; raises as `snapshot_from_json`."""
    failures = data.get("failures")
    return _core_use(
        data["core"],
        data["busy_ns"],
        data["executions"],
        data["flops"],
        data["gpsimd_ns"],
        data["executing"],
        _memory(data["memory"]),
        data.get("model_loads", 0),
        pairs(failures) if failures else (),
    )


def _fields_of(value: Any) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}


def _model(data: dict[str, Any]) -> ModelState:
    return _model_state(*_model_fields(data), _memory(data["memory"]))


def _memory(data: dict[str, int]) -> MemoryUse:
    return _memory_use(*_memory_fields(data))


_core_use = fast_constructor(CoreUse)
_model_state = fast_constructor(ModelState)
_memory_use = fast_constructor(MemoryUse)
_memory_fields = itemgetter(*MemoryUse.__slots__)
_model_fields = itemgetter(*ModelState.__slots__[:-1])
