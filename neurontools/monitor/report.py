"""What one line of neuron-monitor says, as values (system-tools.md section 3.3).

Groups that were not collected are None. `period_s` is the time that a group covers; a group with an `error` holds
zeros. Pairs are sorted by their number.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PhysicalCores:
    """The physical cores behind a logical one, by machine-wide id; `version` is the logical core's, e.g. `v3d`."""

    version: str
    utilization_percent: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class CoreCounters:
    """One logical core as one process uses it. `flops` are the cost model's floating point operations a second.

    `gpsimd_s` is what custom operators took in the period by the model, in seconds of device time.
    """

    utilization_percent: float = 0.0
    flops: int = 0
    physical: PhysicalCores | None = None
    gpsimd_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NeuroncoreCounters:
    """Group `neuroncore_counters`; `cores` by machine-wide logical id."""

    period_s: float
    error: str = ""
    cores: tuple[tuple[int, CoreCounters], ...] = ()


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
    """Executions of the period by how they ended."""

    completed: int = 0
    completed_with_err: int = 0
    completed_with_num_err: int = 0
    timed_out: int = 0
    incorrect_input: int = 0
    failed_to_queue: int = 0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds at which so many percent of the executions had ended."""

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

    period_s: float
    error: str = ""
    errors: ErrorSummary = field(default_factory=ErrorSummary)
    executions: ExecutionSummary = field(default_factory=ExecutionSummary)
    total_latency: Percentiles | None = None
    device_latency: Percentiles | None = None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes on the host by category."""

    application_memory: int = 0
    constants: int = 0
    dma_buffers: int = 0
    tensors: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum over all categories."""
        return self.application_memory + self.constants + self.dma_buffers + self.tensors


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """Device memory in bytes of one logical core by category."""

    constants: int = 0
    model_code: int = 0
    model_shared_scratchpad: int = 0
    runtime_memory: int = 0
    tensors: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum over all categories."""
        return (
            self.constants
            + self.model_code
            + self.model_shared_scratchpad
            + self.runtime_memory
            + self.tensors
        )


@dataclass(frozen=True, slots=True)
class SubgraphMemory:
    """Device memory in bytes of a part of a model by category."""

    constants: int = 0
    model_code: int = 0
    runtime_memory: int = 0
    tensors: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum over all categories."""
        return self.constants + self.model_code + self.runtime_memory + self.tensors


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The part of a model on one core; `core_index` counts inside its device."""

    name: str
    core_index: int
    device_index: int
    host_bytes: int = 0
    device_bytes: int = 0
    host: HostMemory = field(default_factory=HostMemory)
    device: SubgraphMemory = field(default_factory=SubgraphMemory)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model of a process; `uuid` has 32 hexadecimal digits."""

    name: str
    uuid: str
    model_id: int
    is_running: bool
    subgraphs: tuple[Subgraph, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """Group `memory_used`; `cores` by machine-wide logical id."""

    period_s: float
    error: str = ""
    host_bytes: int = 0
    device_bytes: int = 0
    host: HostMemory = field(default_factory=HostMemory)
    cores: tuple[tuple[int, CoreMemory], ...] = ()
    models: tuple[LoadedModel, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeVcpuUsage:
    """Group `neuron_runtime_vcpu_usage`: percent of the CPU time of all vCPUs."""

    period_s: float
    error: str = ""
    user_percent: float = 0.0
    system_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class RuntimeEntry:
    """One process on the machine. `tag` is its NEURON_PROCESS_TAG, or its pid."""

    pid: int
    tag: str
    address: str = ""
    error: str = ""
    neuroncore_counters: NeuroncoreCounters | None = None
    memory_used: MemoryUsed | None = None
    vcpu_usage: RuntimeVcpuUsage | None = None
    execution_stats: ExecutionStats | None = None


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

    period_s: float
    error: str = ""
    average: VcpuShares = field(default_factory=VcpuShares)
    vcpus: tuple[tuple[int, VcpuShares], ...] = ()
    context_switches: int = 0


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Group `memory_info`: the host's memory."""

    period_s: float
    error: str = ""
    memory_total_bytes: int = 0
    memory_used_bytes: int = 0
    swap_total_bytes: int = 0
    swap_used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceErrors:
    """Errors that error correction found in one device, since its counters were reset."""

    device_index: int
    mem_ecc_corrected: int = 0
    mem_ecc_uncorrected: int = 0
    sram_ecc_uncorrected: int = 0
    sram_ecc_corrected: int = 0


@dataclass(frozen=True, slots=True)
class HardwareErrors:
    """Group `neuron_hw_counters`."""

    period_s: float
    error: str = ""
    devices: tuple[DeviceErrors, ...] = ()


@dataclass(frozen=True, slots=True)
class SystemData:
    """The groups of the host and its devices."""

    vcpu_usage: VcpuUsage | None = None
    memory_info: MemoryInfo | None = None
    hardware_errors: HardwareErrors | None = None


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """Where this runs, in EC2's words."""

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
    """What devices there are; `neuroncore_per_device_count` counts logical cores, the memory is one device's."""

    neuron_device_type: str = ""
    neuron_device_version: str = ""
    neuroncore_version: str = ""
    neuron_device_count: int = 0
    neuron_device_memory_size: int = 0
    neuroncore_per_device_count: int = 0
    logical_neuroncore_config: int = 1
    error: str = ""


@dataclass(frozen=True, slots=True)
class MonitorReport:
    """One line of neuron-monitor."""

    runtimes: tuple[RuntimeEntry, ...] = ()
    system: SystemData = field(default_factory=SystemData)
    instance: InstanceInfo = field(default_factory=InstanceInfo)
    hardware: HardwareInfo = field(default_factory=HardwareInfo)
