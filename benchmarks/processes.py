"""Whole-process timing: the same commands in turn, so that a slow moment of the computer hits all of them."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall times of one command in milliseconds."""

    median_ms: float
    minimum_ms: float


def time_in_turn(commands: Sequence[Sequence[str]], rounds: int, environ: Mapping[str, str]) -> list[Timing]:
    """Run the commands A B C A B C ..., output thrown away, and return a timing for each."""
    walls: list[list[float]] = [[] for _ in commands]
    for turn in range(rounds + 2):
        for wall, command in zip(walls, commands, strict=True):
            took = run_ms(command, environ)
            if turn >= 2:
                wall.append(took)
    return [Timing(statistics.median(wall), min(wall)) for wall in walls]


def run_ms(command: Sequence[str], environ: Mapping[str, str]) -> float:
    """Run one command, output thrown away, and return its wall time in milliseconds."""
    begin = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
    pid = os.posix_spawn(command[0], command, environ, file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{' '.join(command)} failed")
    return 1e3 * (time.perf_counter() - begin)
