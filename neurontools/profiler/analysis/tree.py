"""Modelled time as a tree of modules or of source files, and by line of the program's files."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.files import open_input
from neurontools.compiler.graph_nodes import BACKWARD
from neurontools.profiler.analysis.operators import UNKNOWN, By, GroupPart, action_totals, group_totals

if TYPE_CHECKING:
    from neurontools.profiler.analysis.operators import GroupTotal
    from neurontools.profiler.trace.trace import Trace, TraceAction


class TreeKind(StrEnum):
    """What the branches are."""

    LAYER = "layer"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A branch of the tree, or an operator.

    Args:
        name: of the module, file, line or operator; "" for the root.
        total_ns: modelled time in which engines work for it, with all below.
        self_ns: the part of its own operators, without those of branches below.
        count: events, with all below.
        flops: floating-point operations, with all below.
        bytes_moved: bytes read from and written to HBM, with all below.
        children: those with most time first.
        is_operator: whether it is a leaf: an operator.
    """

    name: str
    total_ns: int
    self_ns: int
    count: int
    flops: int
    bytes_moved: int
    children: tuple[TreeNode, ...] = ()
    is_operator: bool = False


def tree(trace: Trace, kind: TreeKind = TreeKind.LAYER) -> TreeNode:
    """Return the root of the tree of a trace; it has no children without device records."""
    counts, times = action_totals(trace)
    root = _Branch()
    for number in np.flatnonzero(counts).tolist():
        each, calls = trace.actions[number], int(counts[number])
        work = (
            int(times[number]),
            calls,
            calls * each.flops,
            calls * (each.read_bytes + each.write_bytes),
        )
        branch = root
        branch.add(work)
        for name in path_of(each, kind):
            branch = branch.below.setdefault((name, False), _Branch())
            branch.add(work)
        branch.below.setdefault((each.name, True), _Branch()).add(work)
    return root.node("", is_operator=False)


def operators_below(node: TreeNode) -> tuple[GroupPart, ...]:
    """Return the operators of a branch and of all below, those with most time first."""
    totals: dict[str, list[int]] = {}
    waiting = [node]
    while waiting:
        branch = waiting.pop()
        waiting += branch.children
        if branch.is_operator:
            total = totals.setdefault(branch.name, [0, 0])
            total[0] += branch.count
            total[1] += branch.total_ns
    parts = (GroupPart(name, count, total_ns) for name, (count, total_ns) in totals.items())
    return tuple(sorted(parts, key=lambda part: (-part.total_ns, part.name)))


def path_of(action: TraceAction, kind: TreeKind) -> tuple[str, ...]:
    """Return the branches above an operator, the outermost first: modules or file and line.

    The outermost module of a backward pass has its own name, so that both passes are apart.
    """
    if kind is TreeKind.SOURCE:
        path, _, line = action.source.rpartition(":")
        return (path, f"line {line}") if path else (action.source or UNKNOWN,)
    layer = action.layer.removesuffix(BACKWARD)
    if not layer:
        return (UNKNOWN,)
    first, *rest = layer.split(".")
    return (first + BACKWARD if layer != action.layer else first, *rest)


@dataclass(slots=True)
class _Branch:
    """A node while it grows: time, events, operations and bytes."""

    work: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    below: dict[tuple[str, bool], _Branch] = field(default_factory=dict)

    def add(self, work: tuple[int, int, int, int]) -> None:
        self.work = [one + other for one, other in zip(self.work, work, strict=True)]

    def node(self, name: str, *, is_operator: bool) -> TreeNode:
        children = [branch.node(name, is_operator=leaf) for (name, leaf), branch in self.below.items()]
        children.sort(key=lambda child: (-child.total_ns, child.name))
        total_ns, count, flops, moved = self.work
        inside = sum(child.total_ns for child in children if not child.is_operator)
        return TreeNode(name, total_ns, total_ns - inside, count, flops, moved, tuple(children), is_operator)


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
    sources = [_file(path, lines) for path, lines in files.items()]
    sources.sort(key=lambda file: (-file.total_ns, file.path))
    return tuple(sources)


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
