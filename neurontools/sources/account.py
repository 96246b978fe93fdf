"""One process as a series of neuron-monitor reports tells of it, with counters that only grow.

A report has rates and counts of a period; a snapshot has totals. What a report does not say is spread evenly: how many
of a process's executions each of its cores did, and how long those between two percentiles took.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import TYPE_CHECKING

from neurontools.machine.memory import MemoryUse
from neurontools.machine.snapshot import LATENCY_BUCKETS, CoreUse, ModelState, ProcessState
from neurontools.runtime.status import NrtStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neurontools.monitor.report import (
        ErrorSummary,
        ExecutionStats,
        ExecutionSummary,
        LoadedModel,
        MemoryUsed,
        NeuroncoreCounters,
        Percentiles,
        RuntimeEntry,
    )

_NANO = 1e9
_NO_MEMORY = MemoryUse()


class ProcessAccount:
    """The totals of one process.

    Args:
        process: who it is, without any work.
        cores_of: machine-wide core ids of each device.
    """

    def __init__(self, process: ProcessState, cores_of: Mapping[int, tuple[int, ...]]) -> None:
        self.identity = process
        self.held_cores: tuple[int, ...] = ()
        """Cores of devices that it holds open, shown where no report names its cores."""
        self._cores_of = cores_of
        self._cores: dict[int, CoreUse] = {}
        self._statuses: dict[int, int] = {}
        self._latency = [0] * LATENCY_BUCKETS
        self._host_memory = _NO_MEMORY
        self._models: tuple[ModelState, ...] = ()
        self._cpu_ns = (0, 0)

    def take(self, entry: RuntimeEntry, vcpus: int) -> None:
        """Add what one report says; groups with an error say nothing."""
        if entry.memory_used is not None and not entry.memory_used.error:
            self._take_memory(entry.memory_used)
        if entry.neuroncore_counters is not None and not entry.neuroncore_counters.error:
            self._take_work(entry.neuroncore_counters)
        if entry.execution_stats is not None and not entry.execution_stats.error:
            self._take_executions(entry.execution_stats)
        usage = entry.vcpu_usage
        if usage is not None and not usage.error:
            second_ns = usage.period_s * vcpus * _NANO / 100
            user_ns, system_ns = self._cpu_ns
            self._cpu_ns = (
                user_ns + round(usage.user_percent * second_ns),
                system_ns + round(usage.system_percent * second_ns),
            )

    def state(self) -> ProcessState:
        """Return the process as a snapshot shows it."""
        cores = self._cores or {core: _idle(core) for core in self.held_cores}
        return replace(
            self.identity,
            cores=tuple(cores[core] for core in sorted(cores)),
            host_memory=self._host_memory,
            models=self._models,
            status_counts=tuple(sorted(self._statuses.items())),
            latency_counts=tuple(self._latency),
            cpu_user_ns=self._cpu_ns[0],
            cpu_system_ns=self._cpu_ns[1],
        )

    def _take_work(self, counters: NeuroncoreCounters) -> None:
        for core, told in counters.cores:
            if told.utilization_percent > 0 or told.flops > 0:
                use = self._cores.get(core, _idle(core))
                self._cores[core] = replace(
                    use,
                    busy_ns=use.busy_ns + round(told.utilization_percent / 100 * counters.period_s * _NANO),
                    flops=use.flops + round(told.flops * counters.period_s),
                    executing=told.utilization_percent > 0,
                )
            elif core in self._cores:
                self._cores[core] = replace(self._cores[core], executing=False)

    def _take_memory(self, told: MemoryUsed) -> None:
        host = told.host
        self._host_memory = MemoryUse(
            constants=host.constants,
            tensors=host.tensors,
            dma_buffers=host.dma_buffers,
            application_memory=host.application_memory,
        )
        on_cores = {
            core: MemoryUse(
                constants=memory.constants,
                model_code=memory.model_code,
                model_shared_scratchpad=memory.model_shared_scratchpad,
                runtime_memory=memory.runtime_memory,
                tensors=memory.tensors,
            )
            for core, memory in told.cores
        }
        known = {model.uuid for model in self._models}
        self._models = tuple(self._model_states(told.models))
        loaded = [model.core for model in self._models if model.uuid not in known]
        used = {core for core, memory in on_cores.items() if memory.total_bytes}
        for core in used | set(loaded) | self._cores.keys():
            use = self._cores.get(core, _idle(core))
            self._cores[core] = replace(
                use,
                memory=on_cores.get(core, _NO_MEMORY),
                model_loads=use.model_loads + loaded.count(core),
            )

    def _model_states(self, models: Iterable[LoadedModel]) -> Iterable[ModelState]:
        for model in models:
            for part in model.subgraphs:
                cores = self._cores_of.get(part.device_index, ())
                if part.core_index < len(cores):
                    memory = MemoryUse(
                        constants=part.device.constants,
                        model_code=part.device.model_code,
                        runtime_memory=part.device.runtime_memory,
                        tensors=part.device.tensors,
                    )
                    core = cores[part.core_index]
                    yield ModelState(model.model_id, model.name, model.uuid, core, model.is_running, memory)

    def _take_executions(self, stats: ExecutionStats) -> None:
        new = _by_status(stats.executions, stats.errors)
        for status, count in new.items():
            self._statuses[status] = self._statuses.get(status, 0) + count
        if stats.total_latency is not None:
            spread = _spread(sum(new.values()), stats.total_latency)
            self._latency = [have + more for have, more in zip(self._latency, spread, strict=True)]
        cores = sorted(self._cores)
        for place, core in enumerate(cores):
            mine = {status: _portion(count, place, len(cores)) for status, count in new.items()}
            use = self._cores[core]
            failures = dict(use.failures)
            for status, count in mine.items():
                if status and count:
                    failures[status] = failures.get(status, 0) + count
            self._cores[core] = replace(
                use, executions=use.executions + sum(mine.values()), failures=tuple(sorted(failures.items()))
            )


def _by_status(executions: ExecutionSummary, errors: ErrorSummary) -> dict[int, int]:
    """Return executions by an NRT status that stands for each kind: the reports have no status numbers."""
    failed = executions.completed_with_err
    hardware = min(failed, errors.hardware)
    out_of_bounds = min(failed - hardware, max(0, errors.model - executions.incorrect_input))
    counts = {
        NrtStatus.NRT_SUCCESS: executions.completed,
        NrtStatus.NRT_HW_ERROR: hardware,
        NrtStatus.NRT_EXEC_OOB: out_of_bounds,
        NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR: failed - hardware - out_of_bounds,
        NrtStatus.NRT_EXEC_COMPLETED_WITH_NUM_ERR: executions.completed_with_num_err,
        NrtStatus.NRT_TIMEOUT: executions.timed_out,
        NrtStatus.NRT_EXEC_BAD_INPUT: executions.incorrect_input,
        NrtStatus.NRT_QUEUE_FULL: executions.failed_to_queue,
    }
    return {int(status): count for status, count in counts.items() if count > 0}


def _spread(count: int, told: Percentiles) -> list[int]:
    """Return a histogram of so many executions that has about these percentiles."""
    ends = ((1, told.p1), (25, told.p25), (50, told.p50), (75, told.p75), (99, told.p99), (100, told.p100))
    spread = [0] * LATENCY_BUCKETS
    placed = 0
    for percent, seconds in ends:
        upto = count * percent // 100
        spread[_bucket(seconds)] += upto - placed
        placed = upto
    return spread


def _bucket(seconds: float) -> int:
    return max(0, min(LATENCY_BUCKETS - 1, int(2 * log2(seconds * 1e6)))) if seconds > 0 else 0


def _portion(amount: int, place: int, parts: int) -> int:
    return amount // parts + (place < amount % parts)


def _idle(core: int) -> CoreUse:
    return CoreUse(core, 0, 0, 0, 0, executing=False, memory=_NO_MEMORY)
