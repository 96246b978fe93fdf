"""Hits, misses, waits and seconds saved by run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.cache.events import EventKind
from neurontools.cache.tables import counted, moment, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.cache.events import Event


@dataclass(slots=True)
class Run:
    """What one run did. Seconds saved are the compile times of what it found, where these are recorded."""

    name: str
    started_unix_s: float = 0.0
    ended_unix_s: float = 0.0
    hits: int = 0
    misses: int = 0
    waits: int = 0
    failures: int = 0
    replayed: int = 0
    damaged: int = 0
    saved_s: float = 0.0
    compiled_s: float = 0.0
    waited_s: float = 0.0

    def add(self, event: Event) -> None:
        """Count one event."""
        self.started_unix_s = self.started_unix_s or event.unix_s
        self.ended_unix_s = max(self.ended_unix_s, event.unix_s)
        match event.kind:
            case EventKind.HIT:
                self.hits += 1
                self.saved_s += event.seconds
            case EventKind.MISS:
                self.misses += 1
                self.compiled_s += event.seconds
            case EventKind.WAIT:
                self.waits += 1
                self.waited_s += event.seconds
            case EventKind.FAILURE:
                self.failures += 1
            case EventKind.REPLAY:
                self.replayed += 1
            case EventKind.DAMAGED:
                self.damaged += 1


def runs_of(events: Iterable[Event]) -> tuple[Run, ...]:
    """Return the runs of events, the one that began first first."""
    runs: dict[str, Run] = {}
    for event in events:
        runs.setdefault(event.run, Run(event.run)).add(event)
    return tuple(sorted(runs.values(), key=lambda run: run.started_unix_s))


def total_of(events: Iterable[Event]) -> Run:
    """Return the sum over all events."""
    total = Run("all")
    for event in events:
        total.add(event)
    return total


def runs_text(runs: Iterable[Run], width: int | None = None) -> str:
    """Return the table of runs, no wider than a terminal's columns."""
    rows = [
        (
            moment(run.started_unix_s),
            run.name,
            str(run.hits),
            str(run.misses),
            str(run.waits),
            str(run.failures),
            str(run.replayed),
            f"{run.saved_s:.3f} s",
            f"{run.compiled_s:.3f} s",
            f"{run.waited_s:.3f} s",
        )
        for run in runs
    ]
    head = ("STARTED", "RUN", "HITS", "MISSES", "WAITS", "FAILED", "REPLAYED", "SAVED", "COMPILED", "WAITED")
    lines = [table(head, rows, "><>>>>>>>>", width=width, spare=(9, 6, 5, 4, 8, 7, 0))] if rows else []
    lines.append(counted(len(rows), "run recorded", "runs recorded"))
    return "\n".join(lines)


def runs_json(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return the JSON form of `runs_text`."""
    return [
        {
            "run": run.name,
            "started_unix_s": run.started_unix_s,
            "ended_unix_s": run.ended_unix_s,
            "hits": run.hits,
            "misses": run.misses,
            "waits": run.waits,
            "failures": run.failures,
            "replayed": run.replayed,
            "damaged": run.damaged,
            "saved_s": run.saved_s,
            "compiled_s": run.compiled_s,
            "waited_s": run.waited_s,
        }
        for run in runs
    ]
