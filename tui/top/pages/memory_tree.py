"""The memory tree on the screen: opened nodes, visible rows, labels, and the selected row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.base.text import printable
from neurontools.machine.memory_tree import MemoryNode, NodeKey, NodeKind
from neurontools.tui.top.numbers import core_label, device_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.machine.memory_tree import MemoryMap

# Values of `MemoryUse` with their long and short labels.
HOST_LABELS = {
    "total_bytes": ("Total", "Total"),
    "tensors": ("Tensors", "Tensors"),
    "constants": ("Constants", "Constants"),
    "dma_buffers": ("DMA Buffers", "DMA"),
    "application_memory": ("App. Memory", "App."),
}
DEVICE_LABELS = {
    "total_bytes": ("Total", "Total"),
    "tensors": ("Tensors", "Tensors"),
    "constants": ("Constants", "Constants"),
    "model_code": ("Model Code", "Code"),
    "runtime_memory": ("Runtime Memory", "Runtime"),
    "model_shared_scratchpad": ("Model Scratchpad", "Scratchpad"),
}
CATEGORY_NAMES = {name: long for name, (long, _) in {**HOST_LABELS, **DEVICE_LABELS}.items()}
"""The labels of memory by category."""

_DEVICE_KEY = 2  # ("device", index); keys of what is in it are longer, the host's is shorter


class TreeRow(Struct, frozen=True):
    """A visible row; `opened` is None for a leaf, `parent` None at the top."""

    node: MemoryNode
    depth: int
    opened: bool | None
    parent: NodeKey | None


def visible_rows(nodes: Iterable[MemoryNode]) -> tuple[TreeRow, ...]:
    """Return the rows of a tree whose closed nodes have no children."""
    return tuple(_rows(nodes, 0, None))


def walk(nodes: Iterable[MemoryNode]) -> Iterator[MemoryNode]:
    """Yield all expandable nodes, parents first."""
    for node in nodes:
        if node.expandable:
            yield node
            yield from walk(node.children)


def label(node: MemoryNode) -> str:
    """Return the label of a node."""
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
            return printable(node.name)


def _rows(nodes: Iterable[MemoryNode], depth: int, parent: NodeKey | None) -> Iterator[TreeRow]:
    for node in nodes:
        yield TreeRow(node, depth, bool(node.children) if node.expandable else None, parent)
        yield from _rows(node.children, depth + 1, node.key)


class TreeCursor:
    """The visible rows of the memory tree, and the selected one.

    Args:
        memory: returns the memory map, None before the first snapshot.
    """

    def __init__(self, memory: Callable[[], MemoryMap | None]) -> None:
        self._memory = memory
        self._shown: MemoryMap | None = None
        self._selected = 0
        self._rows: tuple[TreeRow, ...] = ()
        self._opened: frozenset[NodeKey] = frozenset()

    @property
    def rows(self) -> tuple[TreeRow, ...]:
        """The visible rows; the same object while they look the same."""
        memory = self._memory()
        if memory is not self._shown:
            same = memory is not None and self._shown is not None and self._has_same_rows(memory, self._shown)
            self._shown = memory
            if not same:
                self._show()
        return self._rows

    @property
    def selected(self) -> int:
        """The index of the selected row."""
        return self._selected if self.rows else 0

    @property
    def row(self) -> TreeRow | None:
        """The selected row, None when the tree is empty."""
        return self.rows[self._selected] if self.rows else None

    @property
    def marked_cores(self) -> frozenset[int]:
        """The machine-wide ids of the cores under the selected row."""
        return frozenset(self.row.node.cores) if self.row else frozenset()

    def move(self, steps: int) -> None:
        """Move the selection, stopping at the ends."""
        self.select(self.selected + steps)

    def select(self, index: int) -> None:
        """Select a row by its index among the visible ones, or the nearest one."""
        self._selected = max(0, min(index, len(self.rows) - 1))

    def toggle(self) -> None:
        """Open or close the selected row."""
        row = self.row
        if row and row.opened is not None:
            self._open(self._opened ^ {row.node.key})

    def expand(self) -> None:
        """Open the selected row, or step into it when it is open."""
        row = self.row
        if row and row.opened is False:
            self.toggle()
        elif row and row.opened:
            self.move(1)

    def collapse(self) -> None:
        """Close the selected row, or step out to its parent."""
        row = self.row
        if row and row.opened:
            self.toggle()
        elif row and row.parent is not None:
            keys = [shown.node.key for shown in self.rows]
            self._selected = keys.index(row.parent)

    def toggle_all(self) -> None:
        """Open the whole tree, or close it when all of it is open."""
        everything = frozenset(node.key for node in walk(self._nodes()))
        self._open(frozenset() if everything <= self._opened else self._opened | everything)

    def expand_kinds(self, *kinds: NodeKind) -> None:
        """Open all nodes of these kinds that use memory."""
        self._open(
            self._opened
            | {
                node.key
                for node in walk(self._nodes())
                if node.kind in kinds and (node.device_bytes or node.host_bytes)
            }
        )

    def _nodes(self) -> tuple[MemoryNode, ...]:
        memory = self._memory()
        return memory.tree() if memory else ()

    def _has_same_rows(self, before: MemoryMap, after: MemoryMap) -> bool:
        # Sums alone are shown where nothing is open but devices; deeper rows also say which models run.
        return before.has_same_tree(after) or (
            before.sums is after.sums
            and before.only_used == after.only_used
            and all(len(key) == _DEVICE_KEY for key in self._opened)
        )

    def _open(self, keys: frozenset[NodeKey]) -> None:
        self._opened = keys
        self._shown = self._memory()
        self._show()

    def _show(self) -> None:
        key = self._rows[self._selected].node.key if self._rows else None
        self._rows = visible_rows(self._shown.tree(self._opened)) if self._shown else ()
        # What was selected may be gone, or in a node that was closed: then the nearest one above it.
        places = {row.node.key: index for index, row in enumerate(self._rows)}
        while key and key not in places:
            key = key[:-1]
        self._selected = places[key] if key else max(0, min(self._selected, len(self._rows) - 1))
