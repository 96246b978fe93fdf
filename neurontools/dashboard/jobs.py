"""Jobs: processes that are ranks of one program, and which of them is the slowest."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from neurontools.dashboard.process_rows import job_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.process_rows import ProcessRow

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
