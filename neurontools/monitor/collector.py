"""Reports from snapshots and readings of the host: the collected values, and the endless series of due times."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import psutil

from neurontools.machine import host
from neurontools.machine.instances import catalogue
from neurontools.machine.machine_view import device_processes, process_key
from neurontools.monitor import processes
from neurontools.monitor.config import MetricKey
from neurontools.monitor.processes import NOT_ON_THIS_HOST, ProcessTimes, measured_usage, recorded_usage
from neurontools.monitor.report import (
    DeviceErrors,
    HardwareErrors,
    HardwareInfo,
    HostMemoryInfo,
    InstanceInfo,
    MonitorReport,
    RuntimeEntry,
    RuntimeGroup,
    SystemData,
    SystemGroup,
    VcpuShares,
    VcpuUsage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping

    from neurontools.machine.machine_view import ProcessKey
    from neurontools.machine.snapshot import ProcessState, Snapshot
    from neurontools.monitor.config import MonitorConfig
    from neurontools.monitor.report import RuntimeVcpuUsage

_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq")
_DIGITS = 2

_Times = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class VcpuSample:
    """CPU seconds of every vCPU since the boot, in the order of `VcpuShares`; time stolen by the hypervisor comes last."""

    taken_ns: int
    vcpus: tuple[_Times, ...]
    context_switches: int


def vcpu_usage(before: VcpuSample, after: VcpuSample) -> VcpuUsage:
    """Return what the vCPUs did between two samples; a vCPU that came or went is left out."""
    spent = [
        tuple(max(0.0, end - start) for start, end in zip(first, last, strict=True))
        for first, last in zip(before.vcpus, after.vcpus, strict=False)
    ]
    return VcpuUsage(
        period_s=(after.taken_ns - before.taken_ns) / 1e9,
        average=_shares(tuple(map(sum, zip(*spent, strict=True)))),
        vcpus=tuple((index, _shares(times)) for index, times in enumerate(spent)),
        context_switches=max(0, after.context_switches - before.context_switches),
    )


class HostReader(Protocol):
    """Readings of the host that this runs on."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC nanoseconds."""
        ...

    def vcpus(self) -> VcpuSample:
        """Return what the vCPUs did so far."""
        ...

    def processes(self, keys: list[ProcessKey]) -> host.HostSample:
        """Return the CPU time of processes, those that are not visible left out."""
        ...

    def memory(self, period_s: float) -> HostMemoryInfo:
        """Return the host's memory; the group covers `period_s`."""
        ...


class PsutilHost:
    """The host as psutil and /proc show it."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC nanoseconds."""
        return time.monotonic_ns()

    def vcpus(self) -> VcpuSample:
        """Return what the vCPUs did so far."""
        return VcpuSample(
            taken_ns=time.monotonic_ns(),
            vcpus=tuple(
                (*(getattr(times, name, 0.0) for name in _FIELDS), getattr(times, "steal", 0.0))
                for times in psutil.cpu_times(percpu=True)
            ),
            context_switches=psutil.cpu_stats().ctx_switches,
        )

    def processes(self, keys: list[ProcessKey]) -> host.HostSample:
        """Return the CPU time of processes, those that are not visible left out."""
        return host.sample(keys)

    def memory(self, period_s: float) -> HostMemoryInfo:
        """Return the host's memory; the group covers `period_s`."""
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        return HostMemoryInfo(
            period_s=period_s,
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            swap_total_bytes=swap.total,
            swap_used_bytes=swap.used,
        )


def _shares(times: _Times) -> VcpuShares:
    total = sum(times)
    if total <= 0:
        return VcpuShares()
    return VcpuShares(*(round(100 * part / total, _DIGITS) for part in times[: len(_FIELDS)]))


# A simulated machine stands in no data centre; these are our decision, in the real shape.
_REGION = "us-west-2"
_ZONE = "us-west-2a"
_ZONE_ID = "usw2-az1"
_TAG_MAX = 255
_STALE = "the telemetry page cannot be read, these are its last valid values"

Key = TypeVar("Key", bound="Hashable")

FIRST_INTERVAL_S = 0.05
"""What the rates of the first report cover at least."""

# A captured first line has memory_info alone of the host's groups: these begin with the second line.
_NOT_AT_FIRST = frozenset({SystemGroup.VCPU_USAGE, SystemGroup.HARDWARE_COUNTERS})
# The host that a recording was made on is not this one.
_OF_THIS_HOST = frozenset({SystemGroup.VCPU_USAGE, SystemGroup.MEMORY_INFO})
_LINE = MetricKey(None, SystemGroup.MEMORY_INFO)

# Things whose times differ by less are collected together, so that 0.1 s and 0.3 s share a line each third time.
_TOGETHER_S = 0.005


@dataclass(frozen=True, slots=True)
class _Sample:
    """Readings at one time; rates begin at one and end at another."""

    snapshot: Snapshot
    read_ns: int
    cpu: ProcessTimes | None
    vcpus: VcpuSample | None
    states: Mapping[ProcessKey, ProcessState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _StaticInfo:
    instance: InstanceInfo
    hardware: HardwareInfo
    frame: processes.CoreFrame
    vcpu_count: int


class Collector:
    """Makes reports of one machine.

    Args:
        config: what to collect.
        first: the machine when the monitor started; the first rates begin there.
        reader: what reads the host.
        started_ns: when the monitor started: the begin of the first period.
    """

    def __init__(
        self, config: MonitorConfig, first: Snapshot, reader: HostReader, started_ns: int | None = None
    ) -> None:
        self._config = config
        self._reader = reader
        self._static_info: tuple[object, _StaticInfo] | None = None
        keys = frozenset(config.periods())
        start = self._take_sample(first, keys, reader.now_ns() if started_ns is None else started_ns)
        self._last = dict.fromkeys(keys, start)

    def collect(self, due: Collection[MetricKey], snapshot: Snapshot) -> MonitorReport:
        """Return a report of the due groups alone.

        Args:
            due: keys of the configuration.
            snapshot: the machine now.
        """
        now = self._take_sample(snapshot, due, self._reader.now_ns())
        known = self._current_static_info(snapshot)
        report = MonitorReport(
            runtimes=self._runtimes(due, now, known),
            system=SystemData(
                vcpu_usage=self._vcpu_usage(due, now),
                memory_info=self._memory_info(due, now),
                hardware_errors=self._hardware_errors(due, now),
            ),
            instance=known.instance,
            hardware=known.hardware,
        )
        for key in due:
            self._last[key] = now
        return report

    def _take_sample(self, snapshot: Snapshot, keys: Collection[MetricKey], read_ns: int) -> _Sample:
        groups = {key.group for key in keys}
        cpu = None
        if RuntimeGroup.VCPU_USAGE in groups:
            local = (
                process for process in device_processes(snapshot) if process.origin not in NOT_ON_THIS_HOST
            )
            cpu = ProcessTimes(self._reader.processes([process_key(process) for process in local]))
        return _Sample(
            snapshot=snapshot,
            read_ns=read_ns,
            cpu=cpu,
            vcpus=self._reader.vcpus() if SystemGroup.VCPU_USAGE in groups else None,
            states={process_key(process): process for process in snapshot.processes},
        )

    def _current_static_info(self, snapshot: Snapshot) -> _StaticInfo:
        lost = tuple(device.index for device in snapshot.devices if device.lost)
        identity = (
            snapshot.instance_id,
            snapshot.instance_type,
            snapshot.lnc,
            snapshot.neuroncore_version,
            len(snapshot.devices),
            lost,
        )
        if self._static_info is None or self._static_info[0] != identity:
            self._static_info = (
                identity,
                _StaticInfo(
                    _instance_info(snapshot),
                    _hardware_info(snapshot),
                    processes.CoreFrame(snapshot),
                    catalogue.vcpu_count(snapshot.instance_type),
                ),
            )
        return self._static_info[1]

    def _runtimes(
        self, due: Collection[MetricKey], now: _Sample, known: _StaticInfo
    ) -> tuple[RuntimeEntry, ...]:
        if not any(key.selection is not None for key in due):
            return ()
        entries = (self._entry(due, process, now, known) for process in device_processes(now.snapshot))
        return tuple(entry for entry in entries if entry is not None)

    def _entry(
        self, due: Collection[MetricKey], process: ProcessState, now: _Sample, known: _StaticInfo
    ) -> RuntimeEntry | None:
        tag = process.tag[:_TAG_MAX] or str(process.pid)
        keys: dict[RuntimeGroup, MetricKey] = {}
        for index, selection in enumerate(self._config.runtimes):
            wanted = [key for metric in selection.metrics if (key := MetricKey(index, metric.group)) in due]
            if wanted and selection.tag_filter.search(tag):
                for key in wanted:
                    keys.setdefault(RuntimeGroup(key.group), key)
        if not keys:
            return None
        changes = {group: self._change(key, process, now) for group, key in keys.items()}
        cores = changes.get(RuntimeGroup.NEURONCORE_COUNTERS)
        memory = changes.get(RuntimeGroup.MEMORY_USED)
        cpu = keys.get(RuntimeGroup.VCPU_USAGE)
        executions = changes.get(RuntimeGroup.EXECUTION_STATS)
        return RuntimeEntry(
            pid=process.pid,
            tag=tag,
            error=_STALE if process.stale else "",
            neuroncore_counters=known.frame.counters(cores) if cores else None,
            memory_used=processes.memory_used(memory, known.frame) if memory else None,
            vcpu_usage=self._runtime_vcpu(cpu, process, now, known.vcpu_count) if cpu else None,
            execution_stats=processes.execution_stats(executions) if executions else None,
        )

    def _change(self, key: MetricKey, process: ProcessState, now: _Sample) -> processes.ProcessChange:
        last = self._last[key]
        before = last.states.get(process_key(process))
        if before is None and process.registered_ns <= last.snapshot.taken_ns:
            before = process  # it was there but not seen: what it did in this period is not known
        return processes.ProcessChange(
            before, process, max(0, now.snapshot.taken_ns - last.snapshot.taken_ns)
        )

    def _runtime_vcpu(
        self, key: MetricKey, process: ProcessState, now: _Sample, vcpu_count: int
    ) -> RuntimeVcpuUsage:
        change = self._change(key, process, now)
        if process.origin in NOT_ON_THIS_HOST:
            return recorded_usage(change, vcpu_count)
        return measured_usage(change, self._last[key].cpu, now.cpu)

    def _vcpu_usage(self, due: Collection[MetricKey], now: _Sample) -> VcpuUsage | None:
        key = MetricKey(None, SystemGroup.VCPU_USAGE)
        if key not in due or now.vcpus is None:
            return None
        last = self._last[key].vcpus
        return None if last is None else vcpu_usage(last, now.vcpus)

    def _memory_info(self, due: Collection[MetricKey], now: _Sample) -> HostMemoryInfo | None:
        key = MetricKey(None, SystemGroup.MEMORY_INFO)
        if key not in due:
            return None
        return self._reader.memory((now.read_ns - self._last[key].read_ns) / 1e9)

    def _hardware_errors(self, due: Collection[MetricKey], now: _Sample) -> HardwareErrors | None:
        key = MetricKey(None, SystemGroup.HARDWARE_COUNTERS)
        if key not in due:
            return None
        return HardwareErrors(
            (now.read_ns - self._last[key].read_ns) / 1e9,
            devices=tuple(
                DeviceErrors(
                    device_index=device.index,
                    mem_ecc_corrected=device.hardware.mem_ecc_corrected,
                    mem_ecc_uncorrected=device.hardware.mem_ecc_uncorrected,
                    sram_ecc_uncorrected=device.hardware.sram_ecc_uncorrected,
                    sram_ecc_corrected=device.hardware.sram_ecc_corrected,
                    links_down=len(device.links_down),
                )
                for device in now.snapshot.devices
                if not device.lost
            ),
        )


def _instance_info(snapshot: Snapshot) -> InstanceInfo:
    """Return EC2's facts: id and type of the machine, its name as the instance's, made-up ones for the rest.

    Of a real host or a recording only id and type are known; the rest stays empty.
    """
    if snapshot.source != "sim":
        return InstanceInfo(instance_id=snapshot.instance_id, instance_type=snapshot.instance_type)
    digest = hashlib.sha256(snapshot.instance_id.encode()).hexdigest()
    return InstanceInfo(
        instance_name=snapshot.machine,
        instance_id=snapshot.instance_id,
        instance_type=snapshot.instance_type,
        instance_availability_zone=_ZONE,
        instance_availability_zone_id=_ZONE_ID,
        instance_region=_REGION,
        ami_id=f"ami-0{digest[:16]}",
        subnet_id=f"subnet-0{digest[16:32]}",
    )


def _hardware_info(snapshot: Snapshot) -> HardwareInfo:
    """Return what devices there are; those that fell off the bus are not counted.

    An instance type that the catalogue does not know leaves type and version of the device empty.
    """
    devices = [device for device in snapshot.devices if not device.lost]
    instance = catalogue.find_instance_type(snapshot.instance_type)
    error = "" if instance else f"unknown instance type {snapshot.instance_type!r}"
    if not devices:
        error = "no neuron device found"
    return HardwareInfo(
        neuron_device_type=instance.device.device_type if instance else "",
        neuron_device_version=instance.device.device_version if instance else "",
        neuroncore_version=snapshot.neuroncore_version,
        neuron_device_count=len(devices),
        neuron_device_memory_size=devices[0].memory_bytes if devices else 0,
        neuroncore_per_device_count=len(devices[0].core_ids) if devices else 0,
        logical_neuroncore_config=snapshot.lnc,
        error=error,
    )


class SamplingSchedule(Generic[Key]):
    """Items due at whole multiples of their periods; missed times are not made up for.

    Args:
        periods: seconds, by thing.
        start_s: when everything is due for the first time.
    """

    def __init__(self, periods: Mapping[Key, float], start_s: float) -> None:
        self._start_s = start_s
        self._periods = dict(periods)
        self._turns = dict.fromkeys(periods, 0)

    def next_s(self) -> float:
        """Return when something is due next; infinite for an empty schedule."""
        return min(map(self._due_s, self._periods), default=float("inf"))

    def take(self, now_s: float) -> frozenset[Key]:
        """Return the items due now, and schedule each for its next multiple in the future."""
        due = frozenset(key for key in self._periods if self._due_s(key) <= now_s + _TOGETHER_S)
        for key in due:
            passed = int((now_s + _TOGETHER_S - self._start_s) / self._periods[key])
            self._turns[key] = max(passed, self._turns[key]) + 1
        return due

    def _due_s(self, key: Key) -> float:
        return self._start_s + self._turns[key] * self._periods[key]


def reports(
    config: MonitorConfig,
    take_snapshot: Callable[[], Snapshot],
    reader: HostReader | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[MonitorReport]:
    """Yield the first report at once and then one whenever something is due; never ends by itself.

    Args:
        config: what to collect, and how often. With no group at all a report comes every root period.
        take_snapshot: returns the machine now.
        reader: what reads the host.
        clock: monotonic seconds.
        sleep: waits for some seconds.
    """
    host = reader or PsutilHost()
    started_ns, started_s = host.now_ns(), clock()
    collector = Collector(config, take_snapshot(), host, started_ns)
    # Without any group the report still comes, with the facts of instance and hardware.
    periods = config.periods() or {_LINE: config.period_s}
    wanted = config.periods().keys()
    schedule = SamplingSchedule(periods, started_s)
    sleep(max(0.0, started_s + FIRST_INTERVAL_S - clock()))
    due = frozenset(key for key in schedule.take(started_s) if key.group not in _NOT_AT_FIRST)
    snapshot = take_snapshot()
    while True:
        yield collector.collect(due & wanted, snapshot)
        sleep(max(0.0, schedule.next_s() - clock()))
        snapshot = take_snapshot()
        due = schedule.take(clock())  # after the snapshot, which may have had to wait for its machine


def recorded_reports(
    config: MonitorConfig, snapshots: Iterable[Snapshot], reader: HostReader | None = None
) -> Iterator[MonitorReport]:
    """Yield a report for each snapshot of a recording, over the time since the one before.

    vCPUs and memory of this host are left out; the first report's rates are zero.
    """
    host = reader or PsutilHost()
    keys = frozenset(key for key in config.periods() if key.group not in _OF_THIS_HOST)
    collector = None
    for snapshot in snapshots:
        if collector is None:
            collector = Collector(config, snapshot, host)
        yield collector.collect(keys, snapshot)
