"""What processes take of the host: CPU and resident memory, as this host or the process's own record tells, and parents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.dashboard.process_rows import HostUse
from neurontools.machine.view import process_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neurontools.machine.host import CpuTimes, HostSample
    from neurontools.machine.snapshot import ProcessState, Snapshot
    from neurontools.machine.view import ProcessKey

_PARENT_FIELD = 1
_START_FIELD = 19
_RESIDENT_FIELD = 21


@dataclass(frozen=True, slots=True)
class Presence:
    """What this host says of a process at one moment: its parent's pid, and resident memory in bytes."""

    parent_pid: int
    resident_bytes: int


def presence(pid: int, start_ticks: int | None = None) -> Presence | None:
    """Return what this host says of a process, None when it is gone or another one has its pid.

    Args:
        pid: its pid.
        start_ticks: when it started, None for whichever has the pid now.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= _RESIDENT_FIELD or start_ticks not in {None, int(fields[_START_FIELD])}:
        return None
    return Presence(int(fields[_PARENT_FIELD]), int(fields[_RESIDENT_FIELD]) * os.sysconf("SC_PAGE_SIZE"))


def presences(snapshot: Snapshot) -> dict[ProcessKey, Presence]:
    """Return what this host says of the snapshot's live processes that use a device, as far as it sees them."""
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
    here: Mapping[ProcessKey, Presence],
) -> dict[ProcessKey, HostUse]:
    """Return what processes take of the host between two snapshots.

    A live process is measured by the host; one that the host does not know tells its own CPU time and host memory.

    Args:
        before: an earlier snapshot, None when there is none: CPU shares are zero then.
        after: the snapshot that is shown.
        cpu: CPU times of the host's processes at both, None when they were not taken.
        here: what the host says of them now.
    """
    wall_s = (after.taken_ns - before.taken_ns) / 1e9 if before else 0.0
    earlier = {process_key(process): process for process in before.processes} if before else {}
    start, end = (dict(sample.processes) for sample in cpu) if cpu else ({}, {})
    uses = {}
    for process in _users(after):
        key = process_key(process)
        if process.origin == "live":
            if key in here:
                used_s = _used_s(start.get(key), end.get(key))
                uses[key] = HostUse(_share(used_s, wall_s), here[key].resident_bytes)
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
