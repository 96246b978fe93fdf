"""The memory tree as it is shown: which nodes are open, which rows follow from that, what to call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.machine.memory_tree import MemoryNode, NodeKey, NodeKind
from neurontools.tui.top.numbers import core_label, device_label
from neurontools.tui.widgets.lines import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CATEGORY_NAMES = {
    "tensors": "Tensors",
    "constants": "Constants",
    "model_code": "Model Code",
    "runtime_memory": "Runtime Memory",
    "model_shared_scratchpad": "Model Scratchpad",
    "dma_buffers": "DMA Buffers",
    "application_memory": "App. Memory",
}


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A visible row; `opened` is None for a leaf, `parent` None at the top."""

    node: MemoryNode
    depth: int
    opened: bool | None
    parent: NodeKey | None


def visible_rows(nodes: Iterable[MemoryNode]) -> tuple[TreeRow, ...]:
    """Return the rows of a tree; what is closed has no children in it."""
    return tuple(_rows(nodes, 0, None))


def walk(nodes: Iterable[MemoryNode]) -> Iterator[MemoryNode]:
    """Yield all nodes that can be opened, parents first."""
    for node in nodes:
        if node.expandable:
            yield node
            yield from walk(node.children)


def label(node: MemoryNode) -> str:
    """Return what a node is called on the screen."""
    match node.kind:
        case NodeKind.DEVICE:
            return device_label(node.number)
        case NodeKind.CORE:
            return core_label(node.number)
        case NodeKind.HOST:
            return "Host"
        case NodeKind.CATEGORY:
            return CATEGORY_NAMES[node.name]
        case _:
            return clean(node.name)


def _rows(nodes: Iterable[MemoryNode], depth: int, parent: NodeKey | None) -> Iterator[TreeRow]:
    for node in nodes:
        yield TreeRow(node, depth, bool(node.children) if node.expandable else None, parent)
        yield from _rows(node.children, depth + 1, node.key)
