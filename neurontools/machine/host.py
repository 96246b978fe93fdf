"""CPU use of this host and of processes on it, from two samples."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.base.procfs import read_cpu_ticks, read_stat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.machine.snapshot import Snapshot


class CpuTimes(Struct, frozen=True):
    """CPU seconds since a fixed time."""

    user_s: float
    system_s: float


class HostSample(Struct, frozen=True):
    """CPU times of the host and of some processes by (pid, start ticks). `capacity_s` counts idle time too."""

    capacity_s: float
    host: CpuTimes
    processes: tuple[tuple[tuple[int, int], CpuTimes], ...]


class CpuShare(Struct, frozen=True):
    """Shares (0..1) of all CPU time of the host."""

    user: float
    system: float


IDLE = CpuShare(0.0, 0.0)
_NO_TICKS = (0,) * 8


def sample(processes: Iterable[tuple[int, int]] = ()) -> HostSample:
    """Read the CPU times of the host and of processes; a process that is gone is left out.

    Time spent waiting for I/O is idle time; time in interrupts is system time.
    """
    ticks = [*read_cpu_ticks(), *_NO_TICKS][: len(_NO_TICKS)]
    user, nice, system, idle, iowait, irq, softirq, steal = (count / _ticks_per_second() for count in ticks)
    busy_system_s, user_s, idle_s = system + irq + softirq, user + nice, idle + iowait + steal
    found = ((key, _process_times(*key)) for key in processes)
    return HostSample(
        capacity_s=user_s + busy_system_s + idle_s,
        host=CpuTimes(user_s, busy_system_s),
        processes=tuple((key, used) for key, used in found if used is not None),
    )


def sample_for(snapshot: Snapshot) -> HostSample:
    """Read the CPU times of the host and of the snapshot's processes that really run on it."""
    return sample(
        (process.pid, process.start_ticks)
        for process in snapshot.processes
        if process.origin == "live" and process.uses_device
    )


def host_share(before: HostSample | None, after: HostSample) -> CpuShare:
    """Return how much of the host's CPU time was used between two samples."""
    if before is None:
        return IDLE
    return _share(before, after, before.host, after.host)


def process_share(
    before: HostSample | None, after: HostSample, only: tuple[int, int] | None = None
) -> CpuShare:
    """Return how much of the host's CPU time the sampled processes (or one of them) used between two samples."""
    if before is None:
        return IDLE
    earlier = dict(before.processes)
    user_s = system_s = 0.0
    for key, times in after.processes:
        start = earlier.get(key)
        if start is not None and only in {None, key}:
            user_s += times.user_s - start.user_s
            system_s += times.system_s - start.system_s
    return _share(before, after, CpuTimes(0.0, 0.0), CpuTimes(user_s, system_s))


def recorded_share(before: Snapshot | None, after: Snapshot, only: tuple[int, int] | None = None) -> CpuShare:
    """Return the share of the instance's CPU time that processes unknown to this host report to have used.

    Args:
        before: an earlier snapshot, None when there is none.
        after: the snapshot that is shown.
        only: count this process alone.
    """
    recorded = [process for process in after.processes if process.origin != "live"]
    if before is None or after.taken_ns <= before.taken_ns or not recorded:
        return IDLE
    from neurontools.machine.instances.catalogue import vcpu_count  # few machines have such processes

    earlier = {(process.pid, process.start_ticks): process for process in before.processes}
    user_ns = system_ns = 0
    for process in recorded:
        key = (process.pid, process.start_ticks)
        start = earlier.get(key)
        if start is not None and only in {None, key}:
            user_ns += process.cpu_user_ns - start.cpu_user_ns
            system_ns += process.cpu_system_ns - start.cpu_system_ns
    capacity_ns = (after.taken_ns - before.taken_ns) * vcpu_count(after.instance_type)
    user = min(1.0, max(0.0, user_ns / capacity_ns))
    return CpuShare(user, min(1.0 - user, max(0.0, system_ns / capacity_ns)))


def add_shares(left: CpuShare, right: CpuShare) -> CpuShare:
    """Return the sum of two shares, at most the whole."""
    user = min(1.0, left.user + right.user)
    return CpuShare(user, min(1.0 - user, left.system + right.system))


def _share(before: HostSample, after: HostSample, start: CpuTimes, end: CpuTimes) -> CpuShare:
    wall_s = after.capacity_s - before.capacity_s
    if wall_s <= 0:
        return IDLE
    user = min(1.0, max(0.0, (end.user_s - start.user_s) / wall_s))
    return CpuShare(user, min(1.0 - user, max(0.0, (end.system_s - start.system_s) / wall_s)))


def _process_times(pid: int, start_ticks: int) -> CpuTimes | None:
    stat = read_stat(pid)
    if stat is None or stat.start_ticks != start_ticks:
        return None
    return CpuTimes(stat.user_ticks / _ticks_per_second(), stat.system_ticks / _ticks_per_second())


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")
