"""Modelled time by line of the program's files, with their text where it can be read."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.files import open_input
from neurontools.profiler.analysis.operators import By, group_totals

if TYPE_CHECKING:
    from neurontools.profiler.analysis.operators import GroupTotal
    from neurontools.profiler.trace.trace import Trace

_MOST_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line; `total` is None for lines that caused no work."""

    number: int
    text: str
    total: GroupTotal | None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the program.

    Args:
        path: as the profile names it.
        total_ns: modelled time of all its lines.
        share: part (0 to 1) of the modelled time of everything.
        lines: all of them, or only those with work if the file cannot be read.
        problem: why it cannot be read, empty if it can.
    """

    path: str
    total_ns: int
    share: float
    lines: tuple[SourceLine, ...]
    problem: str


def source_files(trace: Trace) -> tuple[SourceFile, ...]:
    """Return the files of the program that caused work on the device, those with most time first."""
    files: dict[str, dict[int, GroupTotal]] = {}
    for group in group_totals(trace, By.SOURCE):
        path, _, line = group.name.rpartition(":")
        if path and line.isdecimal() and len(line) < 10:
            files.setdefault(path, {})[int(line)] = group
    found = [_file(path, lines) for path, lines in files.items()]
    found.sort(key=lambda file: (-file.total_ns, file.path))
    return tuple(found)


def _file(path: str, totals: dict[int, GroupTotal]) -> SourceFile:
    texts, problem = _read(path)
    last = max(totals)
    if not problem and last > len(texts):
        texts, problem = [], "it is shorter than when it was profiled"
    numbers = range(1, len(texts) + 1) if texts else sorted(totals)
    return SourceFile(
        path=path,
        total_ns=sum(total.total_ns for total in totals.values()),
        share=sum(total.share for total in totals.values()),
        lines=tuple(
            SourceLine(number, texts[number - 1] if texts else "", totals.get(number)) for number in numbers
        ),
        problem=problem,
    )


def _read(path: str) -> tuple[list[str], str]:
    """Return the lines of a file, or why it cannot be read."""
    try:
        if os.path.getsize(path) > _MOST_BYTES:
            return [], "it is too long"
        with io.TextIOWrapper(open_input(path), encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in file], ""  # a form feed ends no line of Python
    except OSError as error:
        return [], error.strerror or "it cannot be opened"
    except ValueError:
        return [], "its name is invalid"
