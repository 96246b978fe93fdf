"""Modelled time as a tree: modules with the modules inside them and their operators, or source files with their lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from neurontools.compiler.graph_nodes import BACKWARD
from neurontools.profiler.analysis.operators import UNKNOWN, GroupPart, action_totals

if TYPE_CHECKING:
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
    found = (GroupPart(name, count, total_ns) for name, (count, total_ns) in totals.items())
    return tuple(sorted(found, key=lambda part: (-part.total_ns, part.name)))


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
