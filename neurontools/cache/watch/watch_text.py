"""What a watch tells, as lines for people, as JSON lines, and as the line that says how things stand."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from neurontools.cache.quantities import format_duration
from neurontools.cache.tables import counted, plain

if TYPE_CHECKING:
    from neurontools.cache.watch.watching import Happening, Summary

_SHORT_S = 10.0
_WIDTH = len("interrupted")


def happening_text(item: Happening) -> str:
    """Return one happening as a line: time of day, what, seconds, which entry, who or why."""
    moment = datetime.fromtimestamp(item.unix_s).strftime("%H:%M:%S")  # noqa: DTZ006  the user's own clock
    seconds = "" if item.seconds is None else _seconds(item.seconds)
    parts = f"{moment}  {item.kind:<{_WIDTH}} {seconds:>8}  {item.module or item.path}"
    return plain(f"{parts}  {item.words}".rstrip())


def happening_json(item: Happening) -> str:
    """Return one happening as a line of JSON."""
    return json.dumps(
        {
            "unix_s": round(item.unix_s, 3),
            "event": item.kind.value,
            "module": item.module or None,
            "path": item.path or None,
            "seconds": item.seconds,
            "words": item.words or None,
        }
    )


def summary_text(summary: Summary) -> str:
    """Return how things stand, in one line."""
    compiling = f"{summary.compiling} compiling"
    if summary.compiling:
        compiling += f" (longest {_seconds(summary.longest_s)})"
    parts = [compiling]
    if summary.waiting:
        parts.append(f"{summary.waiting} waiting")
    parts += [f"{summary.compiled} compiled", f"{summary.failed} failed"]
    parts.append(counted(summary.hits, "hit", "hits") + f" saved {_seconds(summary.saved_s)}")
    parts.append(counted(summary.entries, "entry", "entries"))
    return ", ".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < _SHORT_S else format_duration(seconds)
