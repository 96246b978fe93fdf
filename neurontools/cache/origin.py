"""Who compiled an entry, when, and how long that took: a small file beside the NEFF, which nothing depends on."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from neurontools.cache import layout
from neurontools.cache.tree import LOCAL

if TYPE_CHECKING:
    from neurontools.cache.tree import Tree

_MAX_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Origin:
    """The compile behind an entry: seconds it took, when it began (Unix seconds), and the process."""

    compile_s: float
    started_unix_s: float
    host: str
    pid: int
    user: str
    program: str


def this_compile(compile_s: float) -> Origin:
    """Return the record of a compile that this process has just ended."""
    import sys

    return Origin(
        compile_s=round(compile_s, 6),
        started_unix_s=round(time.time() - compile_s, 3),
        host=os.uname().nodename,
        pid=os.getpid(),
        user=str(os.getuid()),
        program=os.path.basename(sys.argv[0]) if sys.argv else "",
    )


def write_origin(entry: str, origin: Origin) -> None:
    """Store a record in an entry; one that cannot be written is not."""
    path = f"{entry}/{layout.ORIGIN}"
    aside = f"{entry}/{layout.TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with open(aside, "xb") as file:
            file.write(json.dumps(asdict(origin)).encode() + b"\n")
        os.replace(aside, path)
    except OSError:
        return


def read_origin(entry: str, tree: Tree = LOCAL) -> Origin | None:
    """Return the record of an entry, None for none or one that cannot be read."""
    data = tree.read_start(f"{entry}/{layout.ORIGIN}", _MAX_BYTES)
    if not data:
        return None
    try:
        stored = json.loads(data)
        return Origin(
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
    # JSON has no infinity, but 1e400 is one, and what we print must be JSON again.
    number = float(stored)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number
