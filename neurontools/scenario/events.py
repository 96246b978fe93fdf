"""What a play tells while it goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class EventKind(StrEnum):
    """What happened."""

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
    """Something that happened at a scenario time. `process` is its group and rank, "" where it is about none."""

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
    """How far a play is: scenario time in all, how long it will be (None: endless), and who is on the machine."""

    scenario_s: float
    length_s: float | None
    living: int
    waiting: int
