"""The metric groups of one process, computed from two states of it, and which NRT status counts under which key.

Keys, names and numbers are those of the AWS Neuron documentation; which status counts under which key is our decision
where the two do not have the same name. docs/reference/neuron-monitor.md prints this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.machine.machine_view import process_key, quantiles_s
from neurontools.monitor.report import (
    CoreActivity,
    CoreMemory,
    ErrorSummary,
    ExecutionStats,
    ExecutionSummary,
    HostMemory,
    MemoryUsed,
    NeuroncoreCounters,
    Percentiles,
    PhysicalCores,
    ReportedModel,
    RuntimeVcpuUsage,
    Subgraph,
    SubgraphMemory,
)
from neurontools.runtime.status import NrtStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.machine.host import HostSample
    from neurontools.machine.snapshot import MemoryUse, ModelState, ProcessState, Snapshot

_PERCENT_DIGITS = 2
_PERCENTS = (0, 1, 25, 50, 75, 99, 100)

NOT_ON_THIS_HOST = frozenset({"synthetic", "recorded"})
"""Origins of processes that this host's operating system does not know."""


class ExecutionOutcome(StrEnum):
    """Keys of `execution_summary`."""

    COMPLETED = "completed"
    WITH_ERROR = "completed_with_err"
    WITH_NUMERICAL_ERROR = "completed_with_num_err"
    TIMED_OUT = "timed_out"
    INCORRECT_INPUT = "incorrect_input"
    FAILED_TO_QUEUE = "failed_to_queue"


class ErrorKind(StrEnum):
    """Keys of `error_summary`."""

    GENERIC = "generic"
    NUMERICAL = "numerical"
    TRANSIENT = "transient"
    MODEL = "model"
    RUNTIME = "runtime"
    HARDWARE = "hardware"


@dataclass(frozen=True, slots=True)
class MonitorKeys:
    """What an execution that ended with some status counts as; `error` is None for a success."""

    outcome: ExecutionOutcome
    error: ErrorKind | None


KEYS: dict[NrtStatus, MonitorKeys] = {
    NrtStatus.NRT_SUCCESS: MonitorKeys(ExecutionOutcome.COMPLETED, None),
    NrtStatus.NRT_FAILURE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.GENERIC),
    NrtStatus.NRT_INVALID: MonitorKeys(ExecutionOutcome.INCORRECT_INPUT, ErrorKind.GENERIC),
    NrtStatus.NRT_INVALID_HANDLE: MonitorKeys(ExecutionOutcome.INCORRECT_INPUT, ErrorKind.GENERIC),
    NrtStatus.NRT_RESOURCE: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_TIMEOUT: MonitorKeys(ExecutionOutcome.TIMED_OUT, ErrorKind.RUNTIME),
    NrtStatus.NRT_HW_ERROR: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_QUEUE_FULL: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.TRANSIENT),
    NrtStatus.NRT_LOAD_NOT_ENOUGH_NC: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_UNSUPPORTED_NEFF_VERSION: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.MODEL),
    NrtStatus.NRT_FAIL_HOST_MEM_ALLOC: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_UNINITIALIZED: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_CLOSED: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_QUEUE_EMPTY: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.TRANSIENT),
    NrtStatus.NRT_EXEC_UNIT_UNRECOVERABLE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_BAD_INPUT: MonitorKeys(ExecutionOutcome.INCORRECT_INPUT, ErrorKind.MODEL),
    NrtStatus.NRT_EXEC_COMPLETED_WITH_NUM_ERR: MonitorKeys(
        ExecutionOutcome.WITH_NUMERICAL_ERROR, ErrorKind.NUMERICAL
    ),
    NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.GENERIC),
    NrtStatus.NRT_EXEC_NC_BUSY: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.TRANSIENT),
    NrtStatus.NRT_EXEC_OOB: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.MODEL),
    NrtStatus.NRT_COLL_PENDING: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.TRANSIENT),
    NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_HW_ERR_HBM_UE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_HW_ERR_NC_UE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_HW_ERR_DMA_ABORT: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_SW_NQ_OVERFLOW: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.RUNTIME),
    NrtStatus.NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_NETWORK_PROXY_FAILURE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.RUNTIME),
}

_BY_NUMBER = {int(status): keys for status, keys in KEYS.items()}
_UNKNOWN = KEYS[NrtStatus.NRT_FAILURE]


def summaries(counts: Iterable[tuple[int, int]]) -> tuple[ErrorSummary, ExecutionSummary]:
    """Return both summaries of executions counted by NRT status number; an unknown number counts as NRT_FAILURE."""
    errors: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    for status, count in counts:
        keys = _BY_NUMBER.get(status, _UNKNOWN)
        outcomes[keys.outcome] = outcomes.get(keys.outcome, 0) + count
        if keys.error is not None:
            errors[keys.error] = errors.get(keys.error, 0) + count
    return ErrorSummary(**errors), ExecutionSummary(**outcomes)


@dataclass(frozen=True, slots=True)
class ProcessChange:
    """A process now and at the period's begin; `before` is None for a new process."""

    before: ProcessState | None
    after: ProcessState
    period_ns: int

    @property
    def period_s(self) -> float:
        """The period in seconds."""
        return self.period_ns / 1e9


class CoreFrame:
    """The logical cores of a machine without their processes. Lost devices have none.

    Args:
        snapshot: the machine.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        cores = sorted(core for device in snapshot.devices if not device.lost for core in device.core_ids)
        self._version = snapshot.neuroncore_version
        self._lnc = snapshot.lnc
        self._idle = tuple((core, self._counters(core, 0.0, 0, 0)) for core in cores)
        self._position = {core: position for position, core in enumerate(cores)}
        self.places = {
            core: (device.index, position)
            for device in snapshot.devices
            for position, core in enumerate(sorted(device.core_ids))
        }
        """Device index and position in the device of every core."""

    def counters(self, change: ProcessChange) -> NeuroncoreCounters:
        """Return group `neuroncore_counters`: all cores of the machine, those that the process does not use idle."""
        earlier = {use.core: use for use in change.before.cores} if change.before else {}
        cores = list(self._idle)
        for use in change.after.cores:
            position = self._position.get(use.core)
            if position is None or change.period_ns <= 0:
                continue
            start = earlier.get(use.core)
            busy_ns = use.busy_ns - (start.busy_ns if start else 0)
            flops = use.flops - (start.flops if start else 0)
            percent = round(100 * min(1.0, max(0.0, busy_ns / change.period_ns)), _PERCENT_DIGITS)
            rate = max(0, round(flops * 1e9 / change.period_ns))
            gpsimd_ns = max(0, use.gpsimd_ns - (start.gpsimd_ns if start else 0))
            cores[position] = (use.core, self._counters(use.core, percent, rate, gpsimd_ns))
        return NeuroncoreCounters(change.period_s, cores=tuple(cores))

    def _counters(self, core: int, percent: float, flops: int, gpsimd_ns: int) -> CoreActivity:
        if self._lnc == 1:
            return CoreActivity(percent, flops, gpsimd_ns / 1e9)
        # The physical cores of a logical one work together, so both show its value (our decision).
        first = core * self._lnc
        physical = tuple((first + index, percent) for index in range(self._lnc))
        return CoreActivity(percent, flops, gpsimd_ns / 1e9, PhysicalCores(self._version, physical))


def execution_stats(change: ProcessChange) -> ExecutionStats:
    """Return group `execution_stats`. Total and device latency come from the one wall time that is measured."""
    before, after = change.before, change.after
    statuses = dict(before.status_counts) if before else {}
    counts = ((status, max(0, count - statuses.get(status, 0))) for status, count in after.status_counts)
    errors, executions = summaries(counts)
    start = before.latency_counts if before else (0,) * len(after.latency_counts)
    latencies = percentiles(
        [max(0, count - earlier) for count, earlier in zip(after.latency_counts, start, strict=True)]
    )
    return ExecutionStats(
        period_s=change.period_s,
        errors=errors,
        executions=executions,
        total_latency=latencies,
        device_latency=latencies,
    )


def percentiles(counts: Sequence[int]) -> Percentiles | None:
    """Return the percentiles of a histogram as in `ProcessState.latency_counts`, None when it is empty."""
    return Percentiles(*quantiles_s(counts, _PERCENTS)) if any(counts) else None


def memory_used(change: ProcessChange, frame: CoreFrame) -> MemoryUsed:
    """Return group `memory_used`; a core's host-side buffers count as host memory."""
    process = change.after
    cores = tuple(
        sorted(((use.core, _core_memory(use.memory)) for use in process.cores), key=lambda pair: pair[0])
    )
    host = _host_memory([process.host_memory], [use.memory for use in process.cores])
    return MemoryUsed(
        period_s=change.period_s,
        host_bytes=host.total_bytes,
        device_bytes=sum(memory.total_bytes for _, memory in cores),
        host=host,
        cores=cores,
        models=tuple(_models(process.models, frame)),
    )


def _core_memory(memory: MemoryUse) -> CoreMemory:
    return CoreMemory(
        memory.constants,
        memory.model_code,
        memory.model_shared_scratchpad,
        memory.runtime_memory,
        memory.tensors,
    )


def _host_memory(on_host: list[MemoryUse], on_cores: list[MemoryUse]) -> HostMemory:
    # The report has four categories for the host; the others are the application's there.
    application_bytes = sum(
        memory.application_memory + memory.model_code + memory.model_shared_scratchpad + memory.runtime_memory
        for memory in on_host
    )
    return HostMemory(
        application_memory=application_bytes + sum(memory.application_memory for memory in on_cores),
        constants=sum(memory.constants for memory in on_host),
        dma_buffers=sum(memory.dma_buffers for memory in (*on_host, *on_cores)),
        tensors=sum(memory.tensors for memory in on_host),
    )


def _models(models: Iterable[ModelState], frame: CoreFrame) -> Iterable[ReportedModel]:
    by_id: dict[int, list[ModelState]] = {}
    for model in models:
        by_id.setdefault(model.model_id, []).append(model)
    for model_id, parts in sorted(by_id.items()):
        yield ReportedModel(
            name=parts[0].name,
            uuid=parts[0].uuid,
            model_id=model_id,
            is_running=any(part.running for part in parts),
            subgraphs=tuple(_subgraph(index, part, frame) for index, part in enumerate(parts)),
        )


def _subgraph(index: int, part: ModelState, frame: CoreFrame) -> Subgraph:
    device, core = frame.places.get(part.core, (0, part.core))
    host = _host_memory([], [part.memory])
    # The scratchpad is shared by the models of a core and belongs to none of them.
    memory = SubgraphMemory(
        part.memory.constants, part.memory.model_code, part.memory.runtime_memory, part.memory.tensors
    )
    return Subgraph(
        name=f"sg_{index:02d}",
        core_index=core,
        device_index=device,
        host_bytes=host.total_bytes,
        device_bytes=memory.total_bytes,
        host=host,
        device=memory,
    )


class ProcessTimes:
    """A reading of the host's and its processes' CPU times, with the processes by key."""

    __slots__ = ("capacity_s", "processes")

    def __init__(self, reading: HostSample) -> None:
        self.capacity_s = reading.capacity_s
        self.processes = dict(reading.processes)


def recorded_usage(change: ProcessChange, vcpu_count: int) -> RuntimeVcpuUsage:
    """Return the CPU use of a process from its own counters, as percent of the instance's vCPUs."""
    before, after = change.before, change.after
    user_ns = after.cpu_user_ns - (before.cpu_user_ns if before else 0)
    system_ns = after.cpu_system_ns - (before.cpu_system_ns if before else 0)
    return _percent(change.period_s, change.period_s * vcpu_count, user_ns / 1e9, system_ns / 1e9)


def measured_usage(
    change: ProcessChange, start: ProcessTimes | None, end: ProcessTimes | None
) -> RuntimeVcpuUsage:
    """Return what a process of this host used between two readings.

    A process that cannot be seen gets the real tool's error text (captured); a process that is new since the first
    reading gets zeros.
    """
    key = process_key(change.after)
    if end is None or key not in end.processes:
        return RuntimeVcpuUsage(change.period_s, error=f"open /proc/{key[0]}/stat: no such file or directory")
    if start is None or key not in start.processes:
        return RuntimeVcpuUsage(change.period_s)
    first, last = start.processes[key], end.processes[key]
    return _percent(
        change.period_s,
        end.capacity_s - start.capacity_s,
        last.user_s - first.user_s,
        last.system_s - first.system_s,
    )


def _percent(period_s: float, capacity_s: float, user_s: float, system_s: float) -> RuntimeVcpuUsage:
    if capacity_s <= 0:
        return RuntimeVcpuUsage(period_s)
    user, system = (
        round(100 * min(1.0, max(0.0, used_s / capacity_s)), _PERCENT_DIGITS) for used_s in (user_s, system_s)
    )
    return RuntimeVcpuUsage(period_s, user, system)
