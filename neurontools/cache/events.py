"""What lookups did, event by event: one line each in a file of this user, so that runs can be told apart.

A line is `time run event seconds module`; lines are short and appended whole, so processes need no lock. A file that
has grown is put aside once, and the one that was put aside before is dropped.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.cache.usage import counters_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_BYTES = 8 << 20
_RUN_VARIABLES = (env.CACHE_RUN, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_FIELDS = 5


class EventKind(StrEnum):
    """What happened: a hit (seconds saved by it), a miss (seconds compiled), waiting (seconds waited), ..."""

    HIT = "hit"
    MISS = "miss"
    WAIT = "wait"
    FAILURE = "failure"
    DAMAGED = "damaged"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run; `seconds` mean what the kind says."""

    unix_s: float
    run: str
    kind: EventKind
    seconds: float
    module: str


def events_path(root: str) -> str:
    """Return the file with this user's events of a root; it need not exist."""
    return f"{counters_dir(root)}/events"


class Events:
    """The events of one root. Writing never fails: an event that cannot be kept is not kept."""

    def __init__(self, root: str) -> None:
        self._directory = counters_dir(root)
        self._path = events_path(root)
        self._descriptor: int | None = None
        self._pid = 0

    def add(self, kind: EventKind, module: str, seconds: float = 0.0) -> None:
        """Append one event of this process's run."""
        line = f"{time.time():.3f} {this_run()} {kind} {seconds:.6f} {module}\n"
        try:
            os.write(self._opened(), line.encode("utf-8", "replace"))
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self, since_unix_s: float = 0.0) -> Iterator[Event]:
        """Yield the events that are kept and not older than a time, oldest first; damaged lines are left out."""
        for path in (f"{self._path}.old", self._path):
            try:
                if os.stat(path).st_mtime < since_unix_s:
                    continue
                with open(path, encoding="utf-8", errors="replace") as lines:
                    for line in lines:
                        event = event_of(line)
                        if event is not None and event.unix_s >= since_unix_s:
                            yield event
            except OSError:
                continue

    def _opened(self) -> int:
        # A forked child has its own file position already (O_APPEND), but must not close its parent's descriptor twice.
        if self._descriptor is None or self._pid != os.getpid():
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            if os.path.exists(self._path) and os.stat(self._path).st_size > _MAX_BYTES:
                os.replace(self._path, f"{self._path}.old")
            options = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, options, 0o600)
            self._pid = os.getpid()
        return self._descriptor


@cache
def _run_of(pid: int) -> str:
    from neurontools.machine.processes import start_ticks

    for variable in _RUN_VARIABLES:
        name = os.environ.get(variable, "")
        if name and name != "none" and name.isprintable() and " " not in name:
            return f"{variable.partition('_')[0].lower()}:{name[:64]}"
    return f"{pid}:{start_ticks(pid) or 0}"


def this_run() -> str:
    """Return the name of this process's run: what its launcher calls the job, else pid and start time."""
    return _run_of(os.getpid())


def event_of(line: str) -> Event | None:
    """Return the event of a whole line, None for a damaged one."""
    parts = line.split()
    try:
        if len(parts) == _FIELDS and line.endswith("\n"):
            unix_s, seconds = float(parts[0]), float(parts[3])
            if isfinite(unix_s) and isfinite(seconds):
                return Event(unix_s, parts[1], EventKind(parts[2]), seconds, parts[4])
    except ValueError:
        pass
    return None
