"""The groups of one process, from two states of it (system-tools.md section 3.3). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.monitor import latency, status_keys
from neurontools.monitor.report import (
    CoreCounters,
    CoreMemory,
    ExecutionStats,
    HostMemory,
    LoadedModel,
    MemoryUsed,
    NeuroncoreCounters,
    PhysicalCores,
    Subgraph,
    SubgraphMemory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.machine.memory import MemoryUse
    from neurontools.machine.snapshot import ModelState, ProcessState, Snapshot

_PERCENT_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Change:
    """A process now and at the period's begin; `before` is None for one that came since."""

    before: ProcessState | None
    after: ProcessState
    period_ns: int

    @property
    def period_s(self) -> float:
        """The period in seconds."""
        return self.period_ns / 1e9


class CoreFrame:
    """The logical cores of a machine without what is done on them. Lost devices have none.

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

    def counters(self, change: Change) -> NeuroncoreCounters:
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

    def _counters(self, core: int, percent: float, flops: int, gpsimd_ns: int) -> CoreCounters:
        if self._lnc == 1:
            return CoreCounters(percent, flops, gpsimd_s=gpsimd_ns / 1e9)
        # The physical cores of a logical one work together, so both show its value (our decision).
        first = core * self._lnc
        physical = tuple((first + index, percent) for index in range(self._lnc))
        return CoreCounters(percent, flops, PhysicalCores(self._version, physical), gpsimd_ns / 1e9)


def execution_stats(change: Change) -> ExecutionStats:
    """Return group `execution_stats`. Total and device latency come from the one wall time that is measured."""
    before, after = change.before, change.after
    statuses = dict(before.status_counts) if before else {}
    counts = ((status, max(0, count - statuses.get(status, 0))) for status, count in after.status_counts)
    errors, executions = status_keys.summaries(counts)
    start = before.latency_counts if before else (0,) * len(after.latency_counts)
    latencies = latency.percentiles(
        [max(0, count - earlier) for count, earlier in zip(after.latency_counts, start, strict=True)]
    )
    return ExecutionStats(
        period_s=change.period_s,
        errors=errors,
        executions=executions,
        total_latency=latencies,
        device_latency=latencies,
    )


def memory_used(change: Change, frame: CoreFrame) -> MemoryUsed:
    """Return group `memory_used`; a core's host-side buffers count as host memory."""
    process = change.after
    cores = tuple(sorted(((use.core, _core_memory(use.memory)) for use in process.cores), key=_index))
    host = _host_memory([process.host_memory], [use.memory for use in process.cores])
    return MemoryUsed(
        period_s=change.period_s,
        host_bytes=host.total_bytes,
        device_bytes=sum(memory.total_bytes for _, memory in cores),
        host=host,
        cores=cores,
        models=tuple(_models(process.models, frame)),
    )


def _index(pair: tuple[int, CoreMemory]) -> int:
    return pair[0]


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
    other = sum(
        memory.application_memory + memory.model_code + memory.model_shared_scratchpad + memory.runtime_memory
        for memory in on_host
    )
    return HostMemory(
        application_memory=other + sum(memory.application_memory for memory in on_cores),
        constants=sum(memory.constants for memory in on_host),
        dma_buffers=sum(memory.dma_buffers for memory in (*on_host, *on_cores)),
        tensors=sum(memory.tensors for memory in on_host),
    )


def _models(models: Iterable[ModelState], frame: CoreFrame) -> Iterable[LoadedModel]:
    by_id: dict[int, list[ModelState]] = {}
    for model in models:
        by_id.setdefault(model.model_id, []).append(model)
    for model_id, parts in sorted(by_id.items()):
        yield LoadedModel(
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
