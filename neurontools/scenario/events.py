"""Events and progress of a play."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class EventKind(StrEnum):
    """The kind of an event."""

    PLAYING = "playing"
    STARTED = "started"
    ENDED = "ended"
    WAITING = "waiting"
    NO_MEMORY = "no_memory"
    FAULT = "fault"
    FAULT_REFUSED = "fault_refused"
    LOOPED = "looped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class PlayEvent:
    """An event at a scenario time. `process` is a group and rank, "" for an event of no process."""

    scenario_s: float
    kind: EventKind
    process: str = ""
    pid: int | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "scenario_s": round(self.scenario_s, 3)}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a play is: scenario time, its length (None: endless), running and waiting processes."""

    scenario_s: float
    length_s: float | None
    running: int
    waiting: int
