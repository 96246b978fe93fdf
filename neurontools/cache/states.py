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

# A code says that the compiler itself refused the graph, whatever else the log tells.
_REFUSED = re.compile(r"\[NCC_[A-Z]+[0-9]+\]")
_ERROR_WORD = re.compile(r"\b(?:ERROR|Error|error|FATAL|Exception|[A-Z][a-zA-Z]+Error)\b")


class State(StrEnum):
    """An entry's state; INTERRUPTED is ours, for what a killed compile left behind."""

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
        return State.INTERRUPTED if was_ended_from_outside(log) else State.FAILED
    leftovers = any(name.startswith(layout.TEMPORARY_PREFIX) for name in files)
    return State.INTERRUPTED if has_neff or layout.DONE in files or leftovers else State.TODO


def was_ended_from_outside(log: str) -> bool:
    """Return whether a failure's log tells of a kill or Ctrl-C and not of a graph that the compiler refused."""
    return _REFUSED.search(log) is None and _ENDED_FROM_OUTSIDE.search(log) is not None


def first_error_line(log: str) -> str:
    """Return the line of a failure's log that says what failed: the first with a code, else with the word error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern in (_REFUSED, _ERROR_WORD):
        for line in lines:
            if pattern.search(line):
                return line.removeprefix("ERROR: ")
    return lines[0] if lines else ""


def note_of(state: State, lock: LockState | None, log: str, files: Mapping[str, os.stat_result]) -> str:
    """Return a few words on a state that needs some: who holds the lock, why it failed, what is missing."""
    match state:
        case State.LOCKED if lock is not None:
            return f"locked by {lock.holder}"
        case State.FAILED:
            unread = "the log cannot be read" if files[layout.LOG].st_size else "the log is empty"
            return first_error_line(log) or unread
        case State.INTERRUPTED if lock is not None:
            return f"left behind by {lock.holder}"
        case State.INTERRUPTED if layout.NEFF in files:
            return "neff without done marker"
        case State.INTERRUPTED:
            return "compile ended from outside"
        case _:
            return ""
