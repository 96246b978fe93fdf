"""The process table: a row for each process, with rates between two snapshots and its use of the host, and the rows of jobs.

CPU time, resident memory and parents are measured on this host, or taken from the process's telemetry.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from itertools import repeat
from operator import attrgetter, eq, sub
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from neurontools.base.procfs import read_stat
from neurontools.machine.machine_view import process_key, quantile_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neurontools.machine.host import CpuTimes, HostSample
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.machine.snapshot import CoreUse, ProcessState, Snapshot

    _Value = Callable[[CoreUse], int]


Job = tuple[int, str]

_NUMBER = re.compile(r"\d+")


class HostUse(Struct, frozen=True):
    """Host use of a process: share of one vCPU (may exceed 1), and resident memory in bytes."""

    cpu_share: float
    resident_bytes: int


def is_modelled(process: ProcessState) -> bool:
    """Return whether a process is a scenario's, without a real process."""
    return process.origin == "synthetic"


class ProcessRow:
    """One process over an interval.

    Args:
        before: the process at the start of the interval, None if it started later.
        after: the process at the end.
        interval_ns: length of the interval; 0 makes rates zero.
        age_s: how long it has been registered.
        host: its use of the host, None if unknown.
    """

    def __init__(
        self,
        before: ProcessState | None,
        after: ProcessState,
        interval_ns: int,
        age_s: float,
        host: HostUse | None,
    ) -> None:
        self.process = after
        self.age_s = age_s
        self.host = host
        self._before = before
        self._interval_ns = interval_ns
        # Snapshots share what did not change between them, so a process that rests costs nothing to judge.
        self._rests = before is after
        self._latencies_s: dict[float, float | None] = {}

    @property
    def is_modelled(self) -> bool:
        """Whether its host use is modelled by a scenario instead of measured."""
        return is_modelled(self.process)

    @property
    def before(self) -> ProcessState | None:
        """The process at the start of the interval, None if it started later."""
        return self._before

    @cached_property
    def utilization(self) -> float:
        """The mean share (0..1) of wall time in which its cores executed."""
        cores = self.process.cores
        if not cores or self._rests or self._interval_ns <= 0:
            return 0.0
        whole = self._interval_ns
        busy_ns = self._per_core(_busy_ns)
        if min(busy_ns) < 0 or max(busy_ns) > whole:
            busy_ns = [0 if done < 0 else min(done, whole) for done in busy_ns]
        return sum(busy_ns) / whole / len(cores)

    @cached_property
    def executions_s(self) -> float:
        """Executions a second over all its cores."""
        if self._rests or self._interval_ns <= 0:
            return 0.0
        return _sum_of_positive(self._per_core(_executions)) * 1e9 / self._interval_ns

    @cached_property
    def gpsimd_ns(self) -> int:
        """Modelled device time of custom operators in the interval on all its cores, in ns."""
        return 0 if self._rests else _sum_of_positive(self._per_core(_gpsimd_ns))

    @cached_property
    def device_bytes(self) -> int:
        """Device memory in use on its cores."""
        return sum([use.memory.total_bytes for use in self.process.cores])

    @cached_property
    def failed_executions(self) -> int:
        """Executions in the interval that did not succeed."""
        earlier = dict(self._before.status_counts) if self._before else {}
        counts = self.process.status_counts
        return sum(max(0, count - earlier.get(status, 0)) for status, count in counts if status)

    @cached_property
    def failed_share(self) -> float:
        """The share (0..1) of the interval's executions that did not succeed."""
        if self._rests or not self.failed_executions:
            return 0.0
        done = _sum_of_positive(self._per_core(_executions))
        return min(1.0, self.failed_executions / done) if done else 0.0

    def latency_s(self, percent: float) -> float | None:
        """Return a percentile (0..100) of the wall time of executions in the interval; None without any."""
        if self._rests:
            return None
        if percent not in self._latencies_s:
            counts = self._latency_counts
            self._latencies_s[percent] = quantile_s(counts, percent) if any(counts) else None
        return self._latencies_s[percent]

    @cached_property
    def _latency_counts(self) -> Sequence[int]:
        after = self.process.latency_counts
        if self._before is None:
            return after
        return list(map(max, repeat(0), map(sub, after, self._before.latency_counts)))

    @cached_property
    def _has_same_cores(self) -> bool:
        cores, former = self.process.cores, self._before.cores if self._before else ()
        return len(cores) == len(former) and all(map(eq, map(_core, cores), map(_core, former)))

    def _per_core(self, value: _Value) -> list[int]:
        cores, former = self.process.cores, self._before.cores if self._before else ()
        if self._has_same_cores:
            return list(map(sub, map(value, cores), map(value, former)))
        earlier = {use.core: value(use) for use in former}
        return [value(use) - earlier.get(use.core, 0) for use in cores]


def process_rows(
    before: Snapshot | None, after: Snapshot, host: Mapping[ProcessKey, HostUse]
) -> tuple[ProcessRow, ...]:
    """Return a row for every process that uses a device, oldest first.

    Args:
        before: an earlier snapshot of the same machine; None makes rates zero.
        after: the snapshot that is shown.
        host: host use of processes, as far as known.
    """
    earlier = {process_key(process): process for process in before.processes} if before else {}
    interval_ns = after.taken_ns - before.taken_ns if before else 0
    users = (process for process in after.processes if process.uses_device)
    return tuple(
        ProcessRow(
            earlier.get(process_key(process)),
            process,
            interval_ns,
            max(0, after.taken_ns - process.registered_ns) / 1e9,
            host.get(process_key(process)),
        )
        for process in sorted(users, key=attrgetter("registered_ns", "pid"))
    )


def _sum_of_positive(values: Sequence[int]) -> int:
    # Counters rarely go back, and C adds up much faster than a generator.
    return sum(values) if min(values, default=0) >= 0 else sum(max(0, value) for value in values)


_core, _busy_ns, _gpsimd_ns, _executions = map(attrgetter, ("core", "busy_ns", "gpsimd_ns", "executions"))


def job_of(process: ProcessState) -> Job:
    """Return the key of a process's job: user and command without numbers, because sources do not know jobs."""
    return process.uid, _without_numbers(process.command)


@lru_cache(maxsize=4096)
def _without_numbers(command: str) -> str:
    return _NUMBER.sub("#", command)


class Presence(Struct, frozen=True):
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
    for process in filter(attrgetter("uses_device"), after.processes):
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


def _used_s(start: CpuTimes | None, end: CpuTimes | None) -> float:
    if start is None or end is None:
        return 0.0
    return end.user_s + end.system_s - start.user_s - start.system_s


def _recorded_s(process: ProcessState) -> float:
    return (process.cpu_user_ns + process.cpu_system_ns) / 1e9


def _share(used_s: float, wall_s: float) -> float:
    return max(0.0, used_s / wall_s) if wall_s > 0 else 0.0


FEWEST_RANKS = 3
"""Fewer processes of one program are listed one by one."""

_SLOW = 1.15
_MEDIAN_PERCENT = 50
_NUMBER = re.compile(r"\d+")
_RANK = re.compile(r"--?(?:node_|local_|global_)?rank[ =](\d+)")
_LAST_NUMBER = re.compile(r"(\d+)\D*$")

JobKey = tuple[int, str, str]
"""User, command and tag, the last two without numbers."""


class ProcessJob(NamedTuple):
    """Ranks of one program in the order of their first core."""

    key: JobKey
    name: str
    rows: tuple[ProcessRow, ...]

    @property
    def utilization(self) -> float:
        """The mean over all its cores."""
        cores = sum(len(row.process.cores) for row in self.rows)
        busy = sum(row.utilization * len(row.process.cores) for row in self.rows)
        return busy / cores if cores else 0.0

    @property
    def executions_s(self) -> float:
        """Executions a second of all ranks."""
        return sum(row.executions_s for row in self.rows)

    @property
    def device_bytes(self) -> int:
        """Device memory of all ranks."""
        return sum(row.device_bytes for row in self.rows)

    @property
    def slowest(self) -> tuple[int, float] | None:
        """The slowest rank and its median latency as a multiple of the others'; None if all are about as fast."""
        timed = [(row.latency_s(_MEDIAN_PERCENT), at) for at, row in enumerate(self.rows)]
        known = [(seconds, at) for seconds, at in timed if seconds]
        if len(known) < FEWEST_RANKS:
            return None
        usual = median(seconds for seconds, _ in known)
        slowest_s, at = max(known)
        if slowest_s < _SLOW * usual:
            return None
        return rank_of(self.rows[at], at), slowest_s / usual


def rank_of(row: ProcessRow, position: int) -> int:
    """Return the rank that a process's command or tag names, else its position among the ranks."""
    process = row.process
    found = _RANK.search(process.command) or _LAST_NUMBER.search(process.tag)
    return int(found.group(1)) if found else position


def find_jobs(rows: Sequence[ProcessRow]) -> tuple[ProcessJob | ProcessRow, ...]:
    """Return the rows with all ranks of a job, at the place of its first one, as one job."""
    members: dict[JobKey, list[ProcessRow]] = {}
    for row in rows:
        members.setdefault(_key(row), []).append(row)
    found: list[ProcessJob | ProcessRow] = []
    for row in rows:
        key = _key(row)
        ranks = members.get(key)
        if ranks is None:
            continue
        if len(ranks) < FEWEST_RANKS:
            found.append(row)
        else:
            del members[key]
            by_core = sorted(ranks, key=_first_core)
            found.append(ProcessJob(key, _name(ranks[0]), tuple(by_core)))
    return tuple(found)


def _key(row: ProcessRow) -> JobKey:
    uid, command = job_of(row.process)
    return uid, command, _NUMBER.sub("#", row.process.tag)


def _first_core(row: ProcessRow) -> int:
    return min((use.core for use in row.process.cores), default=1 << 30)


def _name(row: ProcessRow) -> str:
    tag = _NUMBER.sub("", row.process.tag).strip("-_ .:") if row.process.tag else ""
    if tag:
        return tag
    words = [word for word in row.process.command.split() if not word.startswith("-")]
    script = next((word for word in words if word.endswith(".py")), words[0] if words else "?")
    return script.rpartition("/")[2]
