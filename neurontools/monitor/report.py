"""The report of neuron-monitor: one schema for what writes its lines, reads them and exports them to Prometheus.

Fields stand in the order of the line. `key` names a field's place in the JSON where that is not its name; dots lead into
nested objects. Groups that were not collected are None. `period_s` is the time that a group covers; a group with an
`error` holds zeros. Pairs are sorted by their number. Source: AWS Neuron documentation, neuron-monitor user guide, and
captured lines.
"""

# ruff: noqa: RUF009  wire() returns dataclasses.field()

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator


LARGEST = 2**63
"""The largest number in a report; real ones have 64 bits."""
MAX_DEVICES = 1024
MAX_CORES_PER_DEVICE = 1024
MAX_PERIOD_S = 1e9


class RuntimeGroup(StrEnum):
    """Metric groups of a process, in the order of the documented default configuration."""

    NEURONCORE_COUNTERS = "neuroncore_counters"
    MEMORY_USED = "memory_used"
    VCPU_USAGE = "neuron_runtime_vcpu_usage"
    EXECUTION_STATS = "execution_stats"


class SystemGroup(StrEnum):
    """Metric groups of the host and its devices."""

    VCPU_USAGE = "vcpu_usage"
    MEMORY_INFO = "memory_info"
    HARDWARE_COUNTERS = "neuron_hw_counters"


class WirePresence(StrEnum):
    """What the line has for a field whose value is None, or zero."""

    ALWAYS = "always"
    NULL_IF_NONE = "null if None"
    OMIT_IF_EMPTY = "omit if None or zero"


def wire(
    *keys: str,
    default: Any = MISSING,
    factory: Any = MISSING,
    presence: WirePresence = WirePresence.ALWAYS,
    name_key: str = "",
) -> Any:
    """Return a dataclass field and how it stands in the line.

    Args:
        keys: its place; with several, all are written and the first that is there is read. None: the field's name.
        default: the value where the line lacks it.
        factory: makes the default.
        presence: what is written for no value.
        name_key: the field of the items that is their key: the list stands in the line as an object.
    """
    metadata = {"keys": keys, "presence": presence, "name_key": name_key}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


class _Categories:
    """Bytes by category."""

    __slots__: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """The sum over all categories."""
        return sum([getattr(self, name) for name in self.__slots__])


@dataclass(frozen=True, slots=True)
class PhysicalCores:
    """The physical cores of a logical one, by machine-wide id; `version` is the logical core's, e.g. `v3d`.

    In the line the version is the key: `"v3d":{"nc_v3.0":{"neuroncore_utilization":1.5}}`.
    """

    version: str
    utilization_percent: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class CoreActivity:
    """One logical core as one process uses it. `flops` are the cost model's floating point operations a second.

    `gpsimd_s` is ours: the modelled device time of custom operators in the period, in seconds. It is left out where none
    ran, so that other lines are what the real tool writes.
    """

    utilization_percent: float = wire("neuroncore_utilization", default=0.0)
    flops: int = wire("effective_flops", "flops", default=0)
    gpsimd_s: float = wire("gpsimd_modelled_seconds", default=0.0, presence=WirePresence.OMIT_IF_EMPTY)
    physical: PhysicalCores | None = wire(default=None, presence=WirePresence.OMIT_IF_EMPTY)


@dataclass(frozen=True, slots=True)
class NeuroncoreCounters:
    """Group `neuroncore_counters`; `cores` by machine-wide logical id."""

    period_s: float = wire("period")
    cores: tuple[tuple[int, CoreActivity], ...] = wire("neuroncores_in_use", default=())
    error: str = ""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Failed executions of the period by kind of error."""

    generic: int = 0
    numerical: int = 0
    transient: int = 0
    model: int = 0
    runtime: int = 0
    hardware: int = 0


@dataclass(frozen=True, slots=True)
class ExecutionSummary:
    """Executions of the period by outcome."""

    completed: int = 0
    completed_with_err: int = 0
    completed_with_num_err: int = 0
    timed_out: int = 0
    incorrect_input: int = 0
    failed_to_queue: int = 0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Execution latency in seconds by percentile. The line has the keys sorted as text."""

    sorted_keys: ClassVar[bool] = True

    p0: float
    p1: float
    p25: float
    p50: float
    p75: float
    p99: float
    p100: float


@dataclass(frozen=True, slots=True)
class ExecutionStats:
    """Group `execution_stats`; the latencies are None when nothing ran."""

    period_s: float = wire("period")
    errors: ErrorSummary = wire("error_summary", factory=ErrorSummary)
    executions: ExecutionSummary = wire("execution_summary", factory=ExecutionSummary)
    total_latency: Percentiles | None = wire(
        "latency_stats.total_latency", default=None, presence=WirePresence.NULL_IF_NONE
    )
    device_latency: Percentiles | None = wire(
        "latency_stats.device_latency", default=None, presence=WirePresence.NULL_IF_NONE
    )
    error: str = ""


@dataclass(frozen=True, slots=True)
class HostMemory(_Categories):
    """Bytes on the host by category."""

    application_memory: int = 0
    constants: int = 0
    dma_buffers: int = 0
    tensors: int = 0


@dataclass(frozen=True, slots=True)
class CoreMemory(_Categories):
    """Device memory in bytes of one logical core by category."""

    constants: int = 0
    model_code: int = 0
    model_shared_scratchpad: int = 0
    runtime_memory: int = 0
    tensors: int = 0


@dataclass(frozen=True, slots=True)
class SubgraphMemory(_Categories):
    """Device memory in bytes of a part of a model by category."""

    constants: int = 0
    model_code: int = 0
    runtime_memory: int = 0
    tensors: int = 0


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The part of a model on one core; `core_index` counts inside its device, `name` is its key in the line."""

    name: str
    host_bytes: int = wire("memory_used_bytes.host", default=0)
    device_bytes: int = wire("memory_used_bytes.neuron_device", default=0)
    host: HostMemory = wire("memory_used_bytes.usage_breakdown.host", factory=HostMemory)
    device: SubgraphMemory = wire("memory_used_bytes.usage_breakdown.neuron_device", factory=SubgraphMemory)
    core_index: int = wire("neuroncore_index", default=0)
    device_index: int = wire("neuron_device_index", default=0)


@dataclass(frozen=True, slots=True)
class ReportedModel:
    """A model of a process; `uuid` has 32 hexadecimal digits."""

    name: str
    uuid: str
    model_id: int
    is_running: bool
    subgraphs: tuple[Subgraph, ...] = wire(default=(), name_key="name")


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """Group `memory_used`; `cores` by machine-wide logical id."""

    period_s: float = wire("period")
    host_bytes: int = wire("neuron_runtime_used_bytes.host", default=0)
    device_bytes: int = wire("neuron_runtime_used_bytes.neuron_device", default=0)
    host: HostMemory = wire("neuron_runtime_used_bytes.usage_breakdown.host", factory=HostMemory)
    cores: tuple[tuple[int, CoreMemory], ...] = wire(
        "neuron_runtime_used_bytes.usage_breakdown.neuroncore_memory_usage", default=()
    )
    models: tuple[ReportedModel, ...] = wire("loaded_models", default=())
    error: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeVcpuUsage:
    """Group `neuron_runtime_vcpu_usage`: percent of the CPU time of all vCPUs."""

    period_s: float = wire("period")
    user_percent: float = wire("vcpu_usage.user", default=0.0)
    system_percent: float = wire("vcpu_usage.system", default=0.0)
    error: str = ""


RuntimeData = NeuroncoreCounters | MemoryUsed | RuntimeVcpuUsage | ExecutionStats


@dataclass(frozen=True, slots=True)
class RuntimeEntry:
    """One process on the machine. `tag` is its NEURON_PROCESS_TAG, or its pid."""

    pid: int
    address: str = ""
    tag: str = wire("neuron_runtime_tag", default="")
    error: str = ""
    execution_stats: ExecutionStats | None = wire(
        "report.execution_stats", default=None, presence=WirePresence.OMIT_IF_EMPTY
    )
    memory_used: MemoryUsed | None = wire(
        "report.memory_used", default=None, presence=WirePresence.OMIT_IF_EMPTY
    )
    vcpu_usage: RuntimeVcpuUsage | None = wire(
        "report.neuron_runtime_vcpu_usage", default=None, presence=WirePresence.OMIT_IF_EMPTY
    )
    neuroncore_counters: NeuroncoreCounters | None = wire(
        "report.neuroncore_counters", default=None, presence=WirePresence.OMIT_IF_EMPTY
    )

    def groups(self) -> Iterator[tuple[RuntimeGroup, RuntimeData]]:
        """Yield the groups that were collected."""
        for name, group in (
            (RuntimeGroup.NEURONCORE_COUNTERS, self.neuroncore_counters),
            (RuntimeGroup.MEMORY_USED, self.memory_used),
            (RuntimeGroup.VCPU_USAGE, self.vcpu_usage),
            (RuntimeGroup.EXECUTION_STATS, self.execution_stats),
        ):
            if group is not None:
                yield name, group


@dataclass(frozen=True, slots=True)
class VcpuShares:
    """Percent of a vCPU's time."""

    user: float = 0.0
    nice: float = 0.0
    system: float = 0.0
    idle: float = 0.0
    io_wait: float = 0.0
    irq: float = 0.0
    soft_irq: float = 0.0


@dataclass(frozen=True, slots=True)
class VcpuUsage:
    """Group `vcpu_usage`; `context_switches` are those of the period."""

    period_s: float = wire("period")
    average: VcpuShares = wire("average_usage", factory=VcpuShares)
    vcpus: tuple[tuple[int, VcpuShares], ...] = wire("usage_data", default=())
    context_switches: int = wire("context_switch_count", default=0)
    error: str = ""


@dataclass(frozen=True, slots=True)
class HostMemoryInfo:
    """Group `memory_info`: the host's memory."""

    period_s: float = wire("period")
    memory_total_bytes: int = 0
    memory_used_bytes: int = 0
    swap_total_bytes: int = 0
    swap_used_bytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeviceErrors:
    """Memory errors of one device since its counters were reset.

    `links_down` is ours: its neighbours that no working link leads to. It is left out where all links work.
    """

    device_index: int = wire("neuron_device_index")
    mem_ecc_corrected: int = 0
    mem_ecc_uncorrected: int = 0
    sram_ecc_uncorrected: int = 0
    sram_ecc_corrected: int = 0
    links_down: int = wire(default=0, presence=WirePresence.OMIT_IF_EMPTY)


@dataclass(frozen=True, slots=True)
class HardwareErrors:
    """Group `neuron_hw_counters`."""

    period_s: float = wire("period")
    devices: tuple[DeviceErrors, ...] = wire("neuron_devices", default=())
    error: str = ""


HostData = HostMemoryInfo | HardwareErrors | VcpuUsage


@dataclass(frozen=True, slots=True)
class SystemData:
    """The groups of the host and its devices; null in the line when there is none."""

    null_if_empty: ClassVar[bool] = True

    memory_info: HostMemoryInfo | None = wire(default=None, presence=WirePresence.OMIT_IF_EMPTY)
    hardware_errors: HardwareErrors | None = wire(
        "neuron_hw_counters", default=None, presence=WirePresence.OMIT_IF_EMPTY
    )
    vcpu_usage: VcpuUsage | None = wire(default=None, presence=WirePresence.OMIT_IF_EMPTY)

    def groups(self) -> Iterator[tuple[SystemGroup, HostData]]:
        """Yield the groups that were collected."""
        for name, group in (
            (SystemGroup.VCPU_USAGE, self.vcpu_usage),
            (SystemGroup.MEMORY_INFO, self.memory_info),
            (SystemGroup.HARDWARE_COUNTERS, self.hardware_errors),
        ):
            if group is not None:
                yield name, group


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """The EC2 instance."""

    instance_name: str = ""
    instance_id: str = ""
    instance_type: str = ""
    instance_availability_zone: str = ""
    instance_availability_zone_id: str = ""
    instance_region: str = ""
    ami_id: str = ""
    subnet_id: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class HardwareInfo:
    """The devices; `neuroncore_per_device_count` counts logical cores, the memory size is one device's.

    Numbers are 0 where a report lacks them.
    """

    neuron_device_type: str = ""
    neuron_device_version: str = ""
    neuroncore_version: str = ""
    neuron_device_count: int = 0
    neuron_device_memory_size: int = 0
    neuroncore_per_device_count: int = 0
    logical_neuroncore_config: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class MonitorReport:
    """One line of neuron-monitor."""

    runtimes: tuple[RuntimeEntry, ...] = wire("neuron_runtime_data", default=())
    system: SystemData = wire("system_data", factory=SystemData)
    instance: InstanceInfo = wire("instance_info", factory=InstanceInfo)
    hardware: HardwareInfo = wire("neuron_hardware_info", factory=HardwareInfo)


DEVICE_ERROR_KINDS = tuple(name for name in DeviceErrors.__slots__ if "_ecc_" in name)
"""The memory errors that a report counts."""


def find_excess(report: MonitorReport) -> str:
    """Return which number of a report no machine can have, "" where all are plausible.

    Readers make a value for each device and core, and multiply rates by periods.
    """
    hardware = report.hardware
    limits: list[tuple[str, float, float]] = [
        ("neuron_device_count", hardware.neuron_device_count, MAX_DEVICES),
        ("neuroncore_per_device_count", hardware.neuroncore_per_device_count, MAX_CORES_PER_DEVICE),
        ("logical_neuroncore_config", hardware.logical_neuroncore_config, MAX_CORES_PER_DEVICE),
    ]
    groups = [*report.system.groups(), *(group for entry in report.runtimes for group in entry.groups())]
    limits += [(f"period of {name}", group.period_s, MAX_PERIOD_S) for name, group in groups]
    for name, number, greatest in limits:
        if not 0 <= number <= greatest:
            return f"{name} is {number:.10g}, expected 0 to {greatest:g}"
    return ""
