"""A machine reconstructed from neuron-monitor's reports: processes with totals, and the time that the reports cover."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import replace as replace_dataclass
from math import log2
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.instances.catalogue import find_instance_type
from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    NO_ERRORS,
    NO_MEMORY,
    UNKNOWN_UID,
    CoreUse,
    DeviceState,
    HardwareCounters,
    MemoryUse,
    ModelState,
    ProcessState,
    Snapshot,
    add_counts,
)
from neurontools.monitor.report import (
    DEVICE_ERROR_KINDS,
    CoreMemory,
    HardwareInfo,
    HostMemory,
    InstanceInfo,
    SubgraphMemory,
)
from neurontools.runtime.status import NrtStatus
from neurontools.sysfs.aggregates import portion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.monitor.report import (
        ErrorSummary,
        ExecutionStats,
        ExecutionSummary,
        MemoryUsed,
        MonitorReport,
        NeuroncoreCounters,
        Percentiles,
        ReportedModel,
        RuntimeEntry,
        VcpuUsage,
    )

# A process that was not reported for this share of the period of its reports is gone.
_GONE_AFTER = 0.9
_NANO = 1e9


class ReportedMachine:
    """The machine according to the reports so far.

    Args:
        identify: returns who a process is, by pid and tag, when it is first reported.
    """

    def __init__(self, identify: Callable[[int, str], ProcessState]) -> None:
        self.hardware = HardwareInfo()
        self.stated_lnc = 0
        """The logical NeuronCore configuration that the newest report states, 0 where it states none."""
        self.instance = InstanceInfo()
        self.errors: dict[int, HardwareCounters] = {}
        self.clock_s = 0.0
        """Seconds that the reports cover so far."""
        self._identify = identify
        self._step_s = 0.0
        self._clocks: dict[str, float] = {}
        self._accounts: dict[int, ProcessAccount] = {}
        self._seen: dict[int, tuple[float, float]] = {}
        self._vcpus = 1
        self._vcpu_usage: tuple[float, float] | None = None
        self._cores_of: dict[int, tuple[int, ...]] = {}

    @property
    def pids(self) -> frozenset[int]:
        """The processes that are there."""
        return frozenset(self._accounts)

    def take(self, report: MonitorReport) -> None:
        """Take in the next report."""
        periods: dict[str, float] = {}
        for group, period_s in _periods(report):
            periods[group] = max(period_s, periods.get(group, 0.0))
        self._advance(periods)
        if report.instance.instance_type:
            self.instance = report.instance
        self.stated_lnc = report.hardware.logical_neuroncore_config or self.stated_lnc
        hardware = _complete(report, find_instance_type(self.instance.instance_type))
        if hardware.neuron_device_count and hardware != self.hardware:
            self.hardware = hardware
            self._cores_of.update(cores_of(hardware))
        self._take_vcpus(report.system.vcpu_usage)
        if report.system.hardware_errors is not None and not report.system.hardware_errors.error:
            for device in report.system.hardware_errors.devices:
                self.errors[device.device_index] = HardwareCounters(
                    **{kind: getattr(device, kind) for kind in DEVICE_ERROR_KINDS}
                )
        self._take_processes(report.runtimes)

    def processes(self, held: Mapping[int, tuple[int, ...]] | None = None) -> tuple[ProcessState, ...]:
        """Return the processes that are there.

        Args:
            held: by pid, the cores of the devices that a process holds open: its cores where no report names them.
        """
        states = []
        for pid, account in self._accounts.items():
            account.held_cores = (held or {}).get(pid, ())
            states.append(account.state())
        return tuple(states)

    def snapshot(self, machine: str, source: str, *, taken_unix_s: float, started_unix_s: float) -> Snapshot:
        """Return the machine as a snapshot, with PCI addresses and links from the catalogue's instance type.

        Args:
            machine: its name.
            source: as in `Snapshot.source`.
            taken_unix_s: when its state was this, in seconds since 1970.
            started_unix_s: when it was first seen.
        """
        hardware, processes = self.hardware, self.processes()
        lnc = max(1, hardware.logical_neuroncore_config)
        instance = find_instance_type(self.instance.instance_type)
        return Snapshot(
            machine=machine,
            source=source,
            instance_type=self.instance.instance_type,
            instance_id=self.instance.instance_id,
            lnc=lnc,
            lnc_applies=lnc > 1 if instance is None else instance.lnc_applies,
            neuroncore_version=hardware.neuroncore_version,
            taken_ns=round(self.clock_s * 1e9),
            taken_unix_s=taken_unix_s,
            started_unix_s=started_unix_s,
            devices=self._devices(processes, instance),
            processes=processes,
            vcpu_usage=self._vcpu_usage,
        )

    def _devices(
        self, processes: tuple[ProcessState, ...], instance: InstanceType | None
    ) -> tuple[DeviceState, ...]:
        hardware = self.hardware
        used: dict[int, int] = {}
        for process in processes:
            for use in process.cores:
                used[use.core] = used.get(use.core, 0) + use.memory.total_bytes
        if instance is not None and instance.device_count != hardware.neuron_device_count:
            instance = None
        return tuple(
            DeviceState(
                index=index,
                bdf=instance.pci_bdf[index] if instance else "",
                cpu_affinity=instance.cpu_affinity[index] if instance else "",
                numa_node=instance.numa_node[index] if instance else "-1",
                connected_to=instance.connected_to[index] if instance else None,
                core_ids=cores,
                memory_bytes=hardware.neuron_device_memory_size,
                memory_used_bytes=sum(used.get(core, 0) for core in cores),
                hardware=self.errors.get(index, NO_ERRORS),
            )
            for index, cores in cores_of(hardware).items()
        )

    def _take_vcpus(self, usage: VcpuUsage | None) -> None:
        if usage is None or usage.error:
            return
        if usage.vcpus:
            self._vcpus = len(usage.vcpus)
        average = usage.average
        system = average.system + average.io_wait + average.irq + average.soft_irq
        self._vcpu_usage = (average.user + average.nice) / 100, system / 100

    def _take_processes(self, entries: tuple[RuntimeEntry, ...]) -> None:
        for entry in entries:
            account = self._accounts.get(entry.pid)
            if account is None:
                identity = self._identify(entry.pid, entry.tag)
                account = self._accounts[entry.pid] = ProcessAccount(identity, self._cores_of)
            account.take(entry, self._vcpus)
            periods = [group.period_s for _, group in entry.groups()]
            self._seen[entry.pid] = self.clock_s, min(periods, default=0.0)
        reported = {entry.pid for entry in entries}
        for pid, (seen_s, period_s) in list(self._seen.items()):
            if pid not in reported and self.clock_s - seen_s >= _GONE_AFTER * period_s:
                del self._seen[pid], self._accounts[pid]

    def _advance(self, periods: Mapping[str, float]) -> None:
        # A report without any group is about processes, of which there are none; it covers as much as the last.
        # Groups may have periods of their own, so each has a clock; the furthest is the time of the report. How far
        # back the first period of a group reaches is not known: it only counts where there is nothing else.
        ends = [
            self._clocks[group] + period_s for group, period_s in periods.items() if group in self._clocks
        ]
        first = self.clock_s + min(periods.values(), default=self._step_s)
        before, self.clock_s = self.clock_s, max((self.clock_s, *ends)) if ends else first
        self._step_s = self.clock_s - before
        self._clocks.update(dict.fromkeys(periods, self.clock_s))


def _complete(report: MonitorReport, instance: InstanceType | None) -> HardwareInfo:
    """Return the facts about the devices; those that a report lacks are the catalogue's, or follow from the cores.

    Older versions of neuron-monitor report less, the oldest exporters nothing.
    """
    stated = report.hardware
    if stated.error:
        return stated
    cores = {
        core
        for entry in report.runtimes
        for group in (entry.neuroncore_counters, entry.memory_used)
        if group is not None
        for core, _ in group.cores
    }
    count, per_device = stated.neuron_device_count, stated.neuroncore_per_device_count
    if instance is None:
        if not cores:
            return stated
        count = count or 1
        per_device = per_device or -(-(max(cores) + 1) // count)
        return replace_dataclass(stated, neuron_device_count=count, neuroncore_per_device_count=per_device)
    device = instance.device
    lnc = stated.logical_neuroncore_config
    if per_device and not lnc:
        lnc = device.physical_cores // per_device
    lnc = lnc or device.lnc_default
    return HardwareInfo(
        neuron_device_type=stated.neuron_device_type or device.device_type,
        neuron_device_version=stated.neuron_device_version or device.device_version,
        neuroncore_version=stated.neuroncore_version or device.core.monitor_version(lnc),
        neuron_device_count=count or instance.device_count,
        neuron_device_memory_size=stated.neuron_device_memory_size or device.memory_bytes,
        neuroncore_per_device_count=per_device or device.physical_cores // lnc,
        logical_neuroncore_config=lnc,
    )


def cores_of(hardware: HardwareInfo) -> dict[int, tuple[int, ...]]:
    """Return the machine-wide ids of the logical cores of each device."""
    per_device = hardware.neuroncore_per_device_count
    return {
        device: tuple(range(device * per_device, (device + 1) * per_device))
        for device in range(hardware.neuron_device_count)
    }


def unknown_process(pid: int, tag: str, origin: str) -> ProcessState:
    """Return a process of which only pid and tag are known, with no work."""
    return ProcessState(
        pid=pid,
        start_ticks=0,
        uid=UNKNOWN_UID,
        command="",
        tag="" if tag == str(pid) else tag,
        runtime_version="",
        origin=origin,
        uses_device=True,
        latency_counts=(0,) * LATENCY_BUCKETS,
    )


def _periods(report: MonitorReport) -> Iterator[tuple[str, float]]:
    for entry in report.runtimes:
        yield from ((f"runtime {name}", group.period_s) for name, group in entry.groups())
    yield from ((name, group.period_s) for name, group in report.system.groups())


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
        self._host_memory = NO_MEMORY
        self._models: tuple[ModelState, ...] = ()
        self._cpu_ns = (0, 0)

    def take(self, entry: RuntimeEntry, vcpus: int) -> None:
        """Add what one report says; groups with an error say nothing."""
        if entry.neuroncore_counters is not None and not entry.neuroncore_counters.error:
            self._take_work(entry.neuroncore_counters)
        if entry.memory_used is not None and not entry.memory_used.error:
            self._take_memory(entry.memory_used)
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
        cores = self._cores or {core: CoreUse(core) for core in self.held_cores}
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
        for core, activity in counters.cores:
            if activity.utilization_percent > 0 or activity.flops > 0:
                use = self._cores.get(core, CoreUse(core))
                self._cores[core] = replace(
                    use,
                    busy_ns=use.busy_ns
                    + round(activity.utilization_percent / 100 * counters.period_s * _NANO),
                    flops=use.flops + round(activity.flops * counters.period_s),
                    executing=activity.utilization_percent > 0,
                )
            elif core in self._cores:
                self._cores[core] = replace(self._cores[core], executing=False)

    def _take_memory(self, used: MemoryUsed) -> None:
        self._host_memory = _memory_use(used.host)
        on_cores = {core: _memory_use(memory) for core, memory in used.cores}
        if not on_cores and used.device_bytes:
            on_cores = self._spread_memory(used.device_bytes)
        known = {model.uuid for model in self._models}
        self._models = tuple(self._model_states(used.models))
        loaded = [model.core for model in self._models if model.uuid not in known]
        occupied = {core for core, memory in on_cores.items() if memory.total_bytes}
        for core in occupied | set(loaded) | self._cores.keys():
            use = self._cores.get(core, CoreUse(core))
            self._cores[core] = replace(
                use,
                memory=on_cores.get(core, NO_MEMORY),
                model_loads=use.model_loads + loaded.count(core),
            )

    def _spread_memory(self, device_bytes: int) -> dict[int, MemoryUse]:
        # Old versions report the sum of the devices alone, and not which kind of memory it is.
        cores = sorted(self._cores) or [0]
        return {
            core: MemoryUse(tensors=portion(device_bytes, place, len(cores)))
            for place, core in enumerate(cores)
        }

    def _model_states(self, models: Iterable[ReportedModel]) -> Iterable[ModelState]:
        for model in models:
            for part in model.subgraphs:
                cores = self._cores_of.get(part.device_index, ())
                if part.core_index < len(cores):
                    core, memory = cores[part.core_index], _memory_use(part.device)
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
            share = {status: portion(count, place, len(cores)) for status, count in new.items()}
            use = self._cores[core]
            failed = tuple((status, count) for status, count in share.items() if status and count)
            self._cores[core] = replace(
                use,
                executions=use.executions + sum(share.values()),
                failures=add_counts(use.failures, failed),
            )


def _memory_use(memory: HostMemory | CoreMemory | SubgraphMemory) -> MemoryUse:
    return MemoryUse(**asdict(memory))


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


def _spread(count: int, latency: Percentiles) -> list[int]:
    """Return a histogram of `count` executions that approximates these percentiles."""
    ends = (
        (1, latency.p1),
        (25, latency.p25),
        (50, latency.p50),
        (75, latency.p75),
        (99, latency.p99),
        (100, latency.p100),
    )
    spread = [0] * LATENCY_BUCKETS
    placed = 0
    for percent, seconds in ends:
        upto = count * percent // 100
        spread[_bucket(seconds)] += upto - placed
        placed = upto
    return spread


def _bucket(seconds: float) -> int:
    return max(0, min(LATENCY_BUCKETS - 1, int(2 * log2(seconds * 1e6)))) if seconds > 0 else 0
