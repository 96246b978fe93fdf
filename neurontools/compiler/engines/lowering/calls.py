"""Operator calls with what lowering asks of them, and the layouts that their consumers want."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.compiler.engines.lowering.families import (
    OperatorFamily,
    has_instruction,
    is_backward,
    kind_of,
    plain_name,
)
from neurontools.compiler.graph import reads
from neurontools.compiler.work import item_bytes, touched_bytes, written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.compiler.graph import Graph, Node, View


class PartitionLayout(StrEnum):
    """Which dimension of a tensor lies across the partitions of SBUF."""

    ROW = "row"
    """All but the last dimension."""

    COLUMN = "column"
    """The last dimension."""

    CHANNEL = "channel"
    """The second dimension, of images."""


class LoweredCall:
    """One operator call that becomes instructions.

    `wanted` is the layout that the first consumer of the result wants, `next_kind` its family; None without consumer.
    `distance` counts the calls up to it.
    """

    __slots__ = ("distance", "kind", "next_kind", "node", "operands", "position", "results", "wanted")

    def __init__(self, position: int, node: Node) -> None:
        self.position = position
        self.node = node
        self.kind = kind_of(node.op)
        self.operands: tuple[View, ...] = reads(node)
        self.results: tuple[View, ...] = written(node)
        self.wanted: PartitionLayout | None = None
        self.next_kind: OperatorFamily | None = None
        self.distance = 0

    @property
    def main(self) -> View | None:
        """The largest tensor of the call."""
        return max((*self.results, *self.operands), key=numel, default=None)


def numel(view: View) -> int:
    """Return the elements of a tensor."""
    return math.prod(view.shape)


def row_bytes(view: View) -> int:
    """Return the contiguous bytes of a DMA descriptor for a tensor: a row of a matrix, a part of anything else."""
    nbytes = touched_bytes(view)
    if len(view.shape) >= 4 and view.strides[-1] == 1 and view.strides[-2] == view.shape[-1]:
        return min(nbytes, view.shape[-1] * view.shape[-2] * item_bytes(view.dtype))
    if len(view.shape) >= 2 and view.shape[-1] > 1:
        if view.strides[-1] == 1:
            return min(nbytes, view.shape[-1] * item_bytes(view.dtype))
        if view.strides[-2] == 1:
            return min(nbytes, view.shape[-2] * item_bytes(view.dtype))
        if len(view.shape) == 2:
            return item_bytes(view.dtype)
    return stream_bytes(nbytes)


def stream_bytes(nbytes: int) -> int:
    """Return the bytes of a descriptor for contiguous memory that may be cut anywhere."""
    return max(-(-nbytes // 128), min(nbytes, 4096), 1)


def is_dense(view: View) -> bool:
    """Return whether the rows of a tensor follow each other in memory, in whatever order of its dimensions."""
    inner = 1
    for stride, size in sorted(zip(view.strides, view.shape, strict=True)):
        if size > 1 and stride != inner:
            return False
        inner *= size
    return True


def is_transposed(view: View) -> bool:
    """Return whether the last two dimensions are swapped in memory."""
    return len(view.shape) >= 2 and view.strides[-1] != 1 and view.strides[-2] == 1 and view.shape[-1] > 1


def contraction_layout(view: View, *, is_left: bool) -> PartitionLayout:
    """Return the layout in which an operand of a matrix product has its contraction across the partitions."""
    contracts_last = is_left != is_transposed(view)
    return PartitionLayout.COLUMN if contracts_last else PartitionLayout.ROW


def calls_of(graph: Graph) -> list[LoweredCall]:
    """Return the calls that become instructions, with the wants of their consumers."""
    calls = [LoweredCall(number, node) for number, node in enumerate(graph.nodes) if has_instruction(node)]
    wanted: dict[int, tuple[PartitionLayout | None, OperatorFamily, int]] = {}
    for number in range(len(calls) - 1, -1, -1):
        call = calls[number]
        for view in call.results:
            found = wanted.get(view.slot)
            if found is not None:
                call.wanted, call.next_kind, position = found
                call.distance = position - number
                break
        for slot, layout in _wants(call):
            wanted[slot] = (layout, call.kind, number)
    return calls


def _wants(call: LoweredCall) -> Iterable[tuple[int, PartitionLayout | None]]:
    """Yield for each operand the layout in which the call wants it."""
    match call.kind:
        case OperatorFamily.MATMUL:
            return _matmul_wants(call)
        case OperatorFamily.ATTENTION:
            tensors = [view for view in call.operands if len(view.shape) == 4]
            layouts = [PartitionLayout.COLUMN] * len(tensors)
            if not is_backward(call.node.op):
                layouts[2:3] = [PartitionLayout.ROW] * len(layouts[2:3])
            return [(view.slot, layout) for view, layout in zip(tensors, layouts, strict=True)]
        case OperatorFamily.CONVOLUTION | OperatorFamily.POOLING | OperatorFamily.BATCH_NORM:
            return [
                (view.slot, PartitionLayout.CHANNEL if len(view.shape) >= 4 else None)
                for view in call.operands
            ]
        case OperatorFamily.ELEMENTWISE | OperatorFamily.TRANSFER | OperatorFamily.UNKNOWN:
            return [(view.slot, call.wanted) for view in call.operands]
        case OperatorFamily.SOFTMAX | OperatorFamily.NORM | OperatorFamily.GATHER:
            return [(view.slot, PartitionLayout.ROW) for view in call.operands]
        case _:
            return [(view.slot, None) for view in call.operands]


def _matmul_wants(call: LoweredCall) -> Iterable[tuple[int, PartitionLayout | None]]:
    left, right = matmul_operands(call)
    for view in call.operands:
        if view is left or view is right:
            yield view.slot, contraction_layout(view, is_left=view is left)
        else:
            yield view.slot, call.wanted


def matmul_operands(call: LoweredCall) -> tuple[View | None, View | None]:
    """Return the factors of a matrix product."""
    start = 1 if plain_name(call.node.op) in _WITH_ADDEND else 0
    found = call.operands[start : start + 2]
    return (found[0], found[1]) if len(found) == 2 else (None, None)


_WITH_ADDEND = frozenset({"addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"})
