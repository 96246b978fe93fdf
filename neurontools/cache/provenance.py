"""Who compiled an entry, when, and how long it took: a small file beside the NEFF. Nothing depends on it."""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from neurontools.base.files import write_atomic
from neurontools.cache import layouts
from neurontools.cache.tree import LOCAL

if TYPE_CHECKING:
    from neurontools.cache.tree import CacheTree


_MAX_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Provenance:
    """The compile of an entry: its duration, start (Unix seconds) and process."""

    compile_s: float
    started_unix_s: float
    host: str
    pid: int
    user: str
    program: str


def new_provenance(compile_s: float) -> Provenance:
    """Return the record of a compile that this process has just finished."""
    import sys

    return Provenance(
        compile_s=round(compile_s, 6),
        started_unix_s=round(time.time() - compile_s, 3),
        host=os.uname().nodename,
        pid=os.getpid(),
        user=str(os.getuid()),
        program=os.path.basename(sys.argv[0]) if sys.argv else "",
    )


def write_provenance(entry: str, origin: Provenance) -> None:
    """Store a record in an entry; errors are ignored."""
    with suppress(OSError):
        write_atomic(f"{entry}/{layouts.ORIGIN}", json.dumps(asdict(origin)) + "\n", sync=False)


def read_provenance(entry: str, tree: CacheTree = LOCAL) -> Provenance | None:
    """Return the record of an entry, None if it is missing or invalid."""
    data = tree.read_start(f"{entry}/{layouts.ORIGIN}", _MAX_BYTES)
    if not data:
        return None
    try:
        stored = json.loads(data)
        return Provenance(
            compile_s=_finite(stored["compile_s"]),
            started_unix_s=_finite(stored["started_unix_s"]),
            host=str(stored["host"]),
            pid=int(stored["pid"]),
            user=str(stored["user"]),
            program=str(stored["program"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _finite(stored: Any) -> float:
    # JSON has no infinity, but 1e400 is read as infinity, and our output must be valid JSON.
    number = float(stored)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number
