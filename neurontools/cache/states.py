"""The states of an entry and how its files show them (compile-runtime.md section 1.4)."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.owner import Liveness

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from neurontools.cache.locks import LockState

# Words of Python, the shell and the real wrapper when a compile did not fail but was ended from outside.
_ENDED_FROM_OUTSIDE = re.compile(
    r"KeyboardInterrupt|SIGKILL|SIGTERM|SIGINT|SIGHUP|\bKilled\b|exit status (?:130|137|143)\b"
)


class State(StrEnum):
    """An entry's state ; INTERRUPTED is ours, for what a killed compile left behind."""

    DONE = "done"
    FAILED = "failed"
    LOCKED = "locked"
    TODO = "todo"
    INTERRUPTED = "interrupted"


def state_of(files: Mapping[str, os.stat_result], lock: LockState | None, log: str) -> State:
    """Return the state that an entry's files, lock and failure log show."""
    has_neff = layout.NEFF in files
    if has_neff and layout.DONE in files:
        return State.DONE
    if lock is not None:
        return State.INTERRUPTED if lock.liveness is Liveness.DEAD else State.LOCKED
    if layout.LOG in files and not has_neff:
        return State.INTERRUPTED if _ENDED_FROM_OUTSIDE.search(log) else State.FAILED
    leftovers = any(name.startswith(layout.TEMPORARY_PREFIX) for name in files)
    return State.INTERRUPTED if has_neff or layout.DONE in files or leftovers else State.TODO


def note_of(state: State, lock: LockState | None, log: str, files: Mapping[str, os.stat_result]) -> str:
    """Return a few words on a state that needs some: who holds the lock, why it failed, what is missing."""
    match state:
        case State.LOCKED if lock is not None:
            return f"locked by {lock.holder}"
        case State.FAILED:
            return next(
                (line.strip().removeprefix("ERROR: ") for line in log.splitlines() if line.strip()),
                "the log is empty",
            )
        case State.INTERRUPTED if lock is not None:
            return f"left behind by {lock.holder}"
        case State.INTERRUPTED if layout.NEFF in files:
            return "neff without done marker"
        case State.INTERRUPTED:
            return "compile ended from outside"
        case _:
            return ""
