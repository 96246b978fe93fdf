"""Group `neuron_runtime_vcpu_usage`: the host CPU time of one process, as percent of all vCPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.view import process_key
from neurontools.monitor.report import RuntimeVcpuUsage

if TYPE_CHECKING:
    from neurontools.machine.host import HostSample
    from neurontools.monitor.processes import Change

_PERCENT_DIGITS = 2

NOT_ON_THIS_HOST = frozenset({"synthetic", "recorded"})
"""Origins of processes that this host's operating system does not know."""


class ProcessTimes:
    """A reading of the host's and its processes' CPU times, with the processes by key."""

    __slots__ = ("capacity_s", "processes")

    def __init__(self, reading: HostSample) -> None:
        self.capacity_s = reading.capacity_s
        self.processes = dict(reading.processes)


def recorded_usage(change: Change, vcpu_count: int) -> RuntimeVcpuUsage:
    """Return what a process used by its own account, on an instance with so many vCPUs."""
    before, after = change.before, change.after
    user_ns = after.cpu_user_ns - (before.cpu_user_ns if before else 0)
    system_ns = after.cpu_system_ns - (before.cpu_system_ns if before else 0)
    return _percent(change.period_s, change.period_s * vcpu_count, user_ns / 1e9, system_ns / 1e9)


def measured_usage(change: Change, start: ProcessTimes | None, end: ProcessTimes | None) -> RuntimeVcpuUsage:
    """Return what a process of this host used between two readings.

    A process that cannot be seen gets the real tool's error text (captured); one that was not there at the first
    reading gets zeros.
    """
    key = process_key(change.after)
    if end is None or key not in end.processes:
        return RuntimeVcpuUsage(change.period_s, f"open /proc/{key[0]}/stat: no such file or directory")
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
    return RuntimeVcpuUsage(period_s, "", user, system)
