"""What `neuron-cache` removed, when and why: one line an entry in a file of this user, so that a later miss can be told.

A line is `time module reason`. A file that has grown is put aside once, and the one put aside before is dropped.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.usage import counters_dir

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.cache.pruning.rules import Choice

_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Removed:
    """An entry that was removed: when (Unix seconds) and by which rule."""

    unix_s: float
    module: str
    reason: str


def note_removed(root: str, choices: Iterable[Choice]) -> None:
    """Append what was removed; what cannot be kept is not kept."""
    now = time.time()
    lines = "".join(f"{now:.3f} {choice.entry.module} {_line(choice.reason)}\n" for choice in choices)
    if not lines:
        return
    path = _path(root)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if os.path.exists(path) and os.stat(path).st_size > _MAX_BYTES:
            os.replace(path, f"{path}.old")
        with open(path, "ab") as file:
            file.write(lines.encode("utf-8", "replace"))
    except OSError:
        return


def last_removals(root: str) -> dict[str, Removed]:
    """Return the last removal of each module that is remembered; damaged lines are left out."""
    found: dict[str, Removed] = {}
    for path in (f"{_path(root)}.old", _path(root)):
        try:
            with open(path, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    removed = _removed(line)
                    if removed is not None:
                        found[removed.module] = removed
        except OSError:
            continue
    return found


def _removed(line: str) -> Removed | None:
    parts = line.rstrip("\n").split(" ", 2)
    try:
        return Removed(float(parts[0]), parts[1], parts[2])
    except (ValueError, IndexError):
        return None


def _line(text: str) -> str:
    return text.replace("\n", " ")


def _path(root: str) -> str:
    return f"{counters_dir(root)}/removed"
