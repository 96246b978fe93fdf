"""Host use of processes: CPU time, resident memory and parents, measured on this host or taken from their telemetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.procfs import read_stat
from neurontools.dashboard.process_rows import HostUse
from neurontools.machine.machine_view import process_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neurontools.machine.host import CpuTimes, HostSample
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.machine.snapshot import ProcessState, Snapshot


@dataclass(frozen=True, slots=True)
class Presence:
    """A process as this host's /proc shows it: its parent's pid, and resident memory in bytes."""

    parent_pid: int
    resident_bytes: int


def presence(pid: int, start_ticks: int | None = None) -> Presence | None:
    """Return a process from /proc, None if it is gone or another process has its pid.

    Args:
        pid: its pid.
        start_ticks: when it started; None accepts any process with this pid.
    """
    stat = read_stat(pid)
    if stat is None or start_ticks not in {None, stat.start_ticks}:
        return None
    return Presence(stat.parent_pid, stat.resident_bytes)


def presences(snapshot: Snapshot) -> dict[ProcessKey, Presence]:
    """Return the live processes of a snapshot that use a device and are visible on this host."""
    seen = (
        (process_key(process), presence(process.pid, process.start_ticks))
        for process in snapshot.processes
        if process.origin == "live" and process.uses_device
    )
    return {key: found for key, found in seen if found is not None}


def host_uses(
    before: Snapshot | None,
    after: Snapshot,
    cpu: tuple[HostSample, HostSample] | None,
    present: Mapping[ProcessKey, Presence],
) -> dict[ProcessKey, HostUse]:
    """Return each process's use of the host between two snapshots.

    Live processes are measured on the host; synthetic and recorded ones report their own CPU time and host memory.

    Args:
        before: an earlier snapshot; None makes all CPU shares zero.
        after: the snapshot that is shown.
        cpu: CPU times of the host's processes at both, None if not sampled.
        present: the processes on this host now.
    """
    wall_s = (after.taken_ns - before.taken_ns) / 1e9 if before else 0.0
    earlier = {process_key(process): process for process in before.processes} if before else {}
    start, end = (dict(sample.processes) for sample in cpu) if cpu else ({}, {})
    uses = {}
    for process in _users(after):
        key = process_key(process)
        if process.origin == "live":
            if key in present:
                used_s = _used_s(start.get(key), end.get(key))
                uses[key] = HostUse(_share(used_s, wall_s), present[key].resident_bytes)
        else:
            used_s = _recorded_s(process) - (_recorded_s(earlier[key]) if key in earlier else 0.0)
            share = _share(used_s, wall_s) if key in earlier else 0.0
            uses[key] = HostUse(share, process.host_memory.total_bytes)
    return uses


def _users(snapshot: Snapshot) -> Iterable[ProcessState]:
    return (process for process in snapshot.processes if process.uses_device)


def _used_s(start: CpuTimes | None, end: CpuTimes | None) -> float:
    if start is None or end is None:
        return 0.0
    return end.user_s + end.system_s - start.user_s - start.system_s


def _recorded_s(process: ProcessState) -> float:
    return (process.cpu_user_ns + process.cpu_system_ns) / 1e9


def _share(used_s: float, wall_s: float) -> float:
    return max(0.0, used_s / wall_s) if wall_s > 0 else 0.0
