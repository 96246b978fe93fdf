"""A snapshot, the one value that every reader of a machine sees: a frozen tree, and rates between two of them.

Counters are cumulative since the process registered (or the machine was made); rates come from two snapshots with
`busy_share`. Times are CLOCK_MONOTONIC nanoseconds of the host unless a name says otherwise.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from neurontools.machine import codec

LATENCY_BUCKETS = 64

UNKNOWN_UID = -1
"""The user of a process whose source does not name one, such as a report of neuron-monitor."""


class HardwareCounter(StrEnum):
    """Memory errors that a device counts (AWS Neuron documentation, neuron-monitor and sysfs user guides)."""

    MEM_ECC_CORRECTED = "mem_ecc_corrected"
    MEM_ECC_UNCORRECTED = "mem_ecc_uncorrected"
    MEM_ECC_REPAIRABLE_UNCORRECTED = "mem_ecc_repairable_uncorrected"
    SRAM_ECC_CORRECTED = "sram_ecc_corrected"
    SRAM_ECC_UNCORRECTED = "sram_ecc_uncorrected"


class HardwareCounters(Struct, frozen=True, gc=False):
    """Errors of one device since its counters were last reset."""

    mem_ecc_corrected: int = 0
    mem_ecc_uncorrected: int = 0
    mem_ecc_repairable_uncorrected: int = 0
    sram_ecc_corrected: int = 0
    sram_ecc_uncorrected: int = 0


NO_ERRORS = HardwareCounters()


StatusCounts = tuple[tuple[int, int], ...]
"""Pairs of NRT status number and executions that ended so, by status."""


def add_counts(left: StatusCounts, right: StatusCounts) -> StatusCounts:
    """Return the sum of both, by status."""
    counts = dict(left)
    for status, count in right:
        counts[status] = counts.get(status, 0) + count
    return tuple(sorted(counts.items()))


class CoreTotals(Struct, frozen=True, gc=False):
    """What exited processes did on one core: with `CoreUse` of the running ones, the core's whole history.

    `failures` are pairs of NRT status number and executions that ended so; `executions` counts those too.
    """

    core: int
    busy_ns: int = 0
    executions: int = 0
    flops: int = 0
    gpsimd_ns: int = 0
    model_loads: int = 0
    failures: StatusCounts = ()

    def plus(self, other: CoreTotals) -> CoreTotals:
        """Return the sum of both."""
        return CoreTotals(
            self.core,
            self.busy_ns + other.busy_ns,
            self.executions + other.executions,
            self.flops + other.flops,
            self.gpsimd_ns + other.gpsimd_ns,
            self.model_loads + other.model_loads,
            add_counts(self.failures, other.failures),
        )


class History(Struct, frozen=True):
    """The counters of a machine.

    `lifetime` are named counters of the whole machine, `core_totals` what exited processes did on each core,
    `hardware` the memory errors of each device that has any.
    """

    lifetime: dict[str, int] = field(default_factory=dict)
    core_totals: tuple[CoreTotals, ...] = ()
    hardware: dict[int, HardwareCounters] = field(default_factory=dict)


class MemoryCategory(StrEnum):
    """What a piece of memory is for (AWS Neuron documentation, neuron-top and neuron-monitor user guides).

    The first five exist on a NeuronCore, `tensors` to `application_memory` on the host.
    """

    CONSTANTS = "constants"
    MODEL_CODE = "model_code"
    MODEL_SHARED_SCRATCHPAD = "model_shared_scratchpad"
    RUNTIME_MEMORY = "runtime_memory"
    TENSORS = "tensors"
    DMA_BUFFERS = "dma_buffers"
    APPLICATION_MEMORY = "application_memory"


class MemoryUse(Struct, frozen=True, gc=False):
    """Bytes in use by category."""

    constants: int = 0
    model_code: int = 0
    model_shared_scratchpad: int = 0
    runtime_memory: int = 0
    tensors: int = 0
    dma_buffers: int = 0
    application_memory: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum over all categories."""
        return (
            self.constants
            + self.model_code
            + self.model_shared_scratchpad
            + self.runtime_memory
            + self.tensors
            + self.dma_buffers
            + self.application_memory
        )


NO_MEMORY = MemoryUse()


class ModelState(Struct, frozen=True, gc=False):
    """A loaded model. `memory` is its device memory on core `core` (machine-wide logical id)."""

    model_id: int
    name: str
    uuid: str
    core: int
    running: bool
    memory: MemoryUse


class CoreUse(Struct, frozen=True, gc=False):
    """What one process did on one core that it claims.

    `busy_ns` includes the execution under way up to the snapshot's `taken_ns`. `flops` are those of the cost model.
    `gpsimd_ns` is modelled time of custom operators. `failures` are pairs of NRT status number and executions that
    ended so; `executions` counts those too. `model_loads` counts the models that were ever loaded onto it.
    """

    core: int
    busy_ns: int = 0
    executions: int = 0
    flops: int = 0
    gpsimd_ns: int = 0
    executing: bool = False
    memory: MemoryUse = NO_MEMORY
    model_loads: int = 0
    failures: StatusCounts = ()


class ProcessState(Struct, frozen=True, gc=False):
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
    cores: tuple[CoreUse, ...] = ()
    host_memory: MemoryUse = NO_MEMORY
    models: tuple[ModelState, ...] = ()
    status_counts: StatusCounts = ()
    latency_counts: tuple[int, ...] = ()
    registered_ns: int = 0
    stale: bool = False
    cpu_user_ns: int = 0
    cpu_system_ns: int = 0


class DeviceState(Struct, frozen=True, gc=False):
    """One chip. `core_ids` are the machine-wide logical ids; `connected_to` is None on single-device instances.

    `lost` is set for a device that fell off the bus, `links_down` are the neighbours whose link is broken, which
    `connected_to` does not name. `unhealthy` are the components that are broken, in the driver's words. `power` is the
    lowest, highest and mean power of the last minute as shares (0..1) of the most that the device may take, None where
    no driver reports it.
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


class UltraServer(Struct, frozen=True):
    """The place of an instance in its UltraServer.

    `node` counts from 0, `modes` are the numbers of the ways in which the instances may be joined. `files` are pairs
    of name and content (without a line end) of the files below `/sys/class/neuron_device`.
    """

    nodes: int
    node: int
    modes: tuple[int, ...]
    files: tuple[tuple[str, str], ...]


class Snapshot(Struct, frozen=True, gc=False):
    """The machine at one time. `source` is "sim", "recording" or "real"; `lnc` is 1 where it does not apply.

    `core_totals` counts what exited processes did, for cores on which they did anything. `vcpu_usage` are the shares
    (0..1) of all vCPUs in user and system mode that a report states, None where the reader measures them.
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
    lifetime: tuple[tuple[str, int], ...] = ()
    core_totals: tuple[CoreTotals, ...] = ()
    ultraserver: UltraServer | None = None
    vcpu_usage: tuple[float, float] | None = None

    def core_owner(self, core: int) -> ProcessState | None:
        """Return the process that claims a core, by machine-wide logical id."""
        owners = {use.core: process for process in self.processes for use in process.cores}
        return owners.get(core)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, the same in the protocol, in recordings and in `--json` outputs."""
        value: dict[str, Any] = codec.to_builtins(self)
        return value


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
