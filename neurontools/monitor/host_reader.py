"""The host's vCPUs and memory, by psutil."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import psutil

from neurontools.machine import host
from neurontools.monitor.report import HostMemoryInfo, VcpuShares, VcpuUsage

if TYPE_CHECKING:
    from neurontools.machine.machine_view import ProcessKey

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
    """What is read of the host that this runs on."""

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
