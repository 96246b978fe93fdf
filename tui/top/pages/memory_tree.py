"""The memory panes of neuron-top: the summary by category, and the tree with its selected row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.base.text import printable
from neurontools.machine.memory_tree import MemoryMap, MemoryNode, NodeKey, NodeKind
from neurontools.machine.snapshot import MemoryUse
from neurontools.tui.top.numbers import core_label, device_label, size
from neurontools.tui.top.pages.rows import section, section_heads
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from neurontools.tui.top.model import TopModel


Pair = tuple[str, int]

# The heads of the table in narrow terminals.
_TABLE = {
    "total_bytes": "Total",
    "tensors": "Tensors",
    "constants": "Const",
    "model_code": "Code",
    "runtime_memory": "Runtime",
    "model_shared_scratchpad": "Scratch",
    "dma_buffers": "DMA",
    "application_memory": "App",
}

_SIZE_WIDTH = 8
_LONG_LABELS_WIDTH = 146
_PAIRS_WIDTH = 116
_TABLE_COLUMN = 9
_TABLE_LABEL = 7
_WIDEST_NAME = 72
_MODEL_ID_WIDTH = 10
_MEMORY_WIDTH = 16


def summary_lines(model: TopModel, width: int) -> tuple[Line, ...]:
    """Return the summary: its bar, host memory, device memory.

    Label and value pairs where they fit; in a narrower terminal the labels stand in the bar.
    """
    host = model.shown.view.memory.host if model.shown.view else MemoryUse()
    device = model.shown.view.memory.device if model.shown.view else MemoryUse()
    if width < _PAIRS_WIDTH:
        return _summary_table(host, device, width)
    long = width >= _LONG_LABELS_WIDTH
    rows = (_pairs(host, HOST_LABELS, long=long), _pairs(device, DEVICE_LABELS, long=long))
    columns = max(len(row) for row in rows)
    widths = [
        max(len(row[index][0]) for row in rows if index < len(row)) + _SIZE_WIDTH + 3
        for index in range(columns)
    ]
    heads = (" Host Used Memory   ", " Device Used Memory ") if long else (" Host   ", " Device ")
    return (
        section(" Memory Usage Summary", width),
        *(_pairs_line(head, row, widths, width) for head, row in zip(heads, rows, strict=True)),
    )


def detail_lines(model: TopModel, width: int, lines: int) -> tuple[Line, ...]:
    """Return the tree: its bar with the heads of the columns, then the rows around the selected one."""
    start = first_row(model, lines)
    shown = model.tree.rows[start : start + lines]
    name_width = min(_WIDEST_NAME, width - _MODEL_ID_WIDTH - 2 * _MEMORY_WIDTH - 1)
    title = " Memory Usage Details"
    if len(shown) < len(model.tree.rows) and name_width > 36:
        title += f"  ({start + 1}-{start + len(shown)} of {len(model.tree.rows)})"
    heads = (
        fixed(title, name_width),
        "Model ID".rjust(_MODEL_ID_WIDTH),
        "Device Memory".rjust(_MEMORY_WIDTH),
        "Host Memory".rjust(_MEMORY_WIDTH),
    )
    rows = [
        _tree_line(row, width, name_width, selected=start + index == model.tree.selected)
        for index, row in enumerate(shown)
    ]
    return (section_heads(heads, width), *rows, *(fit((), width) for _ in range(lines - len(rows))))


def first_row(model: TopModel, lines: int) -> int:
    """Return the index of the first visible row of the tree, so that the selected one is in view."""
    return max(0, min(model.tree.selected - lines // 2, len(model.tree.rows) - lines))


def _tree_line(row: TreeRow, width: int, name_width: int, *, selected: bool) -> Line:
    node = row.node
    sign = "    " if row.opened is None else "[-] " if row.opened else "[+] "
    name = fixed(" " * (1 + 2 * row.depth) + sign + label(node), name_width)
    model_id = str(node.number) if node.kind is NodeKind.MODEL else ""
    text, number = Role.PLAIN, Role.CLASSIC_VALUE
    if selected:
        text = number = Role.SELECTED
    elif not node.running or not (node.device_bytes or node.host_bytes):
        text = number = Role.DIM
    spans = (
        (name, text),
        (model_id.rjust(_MODEL_ID_WIDTH), text),
        (size(node.device_bytes).rjust(_MEMORY_WIDTH), number),
        (size(node.host_bytes).rjust(_MEMORY_WIDTH), number),
    )
    return fit(spans, width, text if selected else Role.PLAIN)


def _summary_table(host: MemoryUse, device: MemoryUse, width: int) -> tuple[Line, ...]:
    columns = list(_TABLE)[: (width - _TABLE_LABEL) // _TABLE_COLUMN]
    titles = (_TABLE[name].rjust(_TABLE_COLUMN) for name in columns)
    lines = [section_heads((" Memory".ljust(_TABLE_LABEL), *titles), width)]
    for head, use, labels in ((" Host", host, HOST_LABELS), (" Device", device, DEVICE_LABELS)):
        spans: list[Span] = [(head.ljust(_TABLE_LABEL), Role.PLAIN)]
        for name in columns:
            value = getattr(use, name) if name in labels else None
            text = "" if value is None else size(value)
            spans.append((text.rjust(_TABLE_COLUMN), Role.CLASSIC_VALUE if value else Role.DIM))
        lines.append(fit(spans, width))
    return tuple(lines)


def _pairs(use: MemoryUse, labels: Mapping[str, tuple[str, str]], *, long: bool) -> tuple[Pair, ...]:
    return tuple((names[not long], getattr(use, name)) for name, names in labels.items())


def _pairs_line(head: str, pairs: tuple[Pair, ...], widths: list[int], width: int) -> Line:
    spans: list[Span] = [(head, Role.PLAIN)]
    for (name, value), column in zip(pairs, widths, strict=False):
        text = size(value)
        spans += [
            (f"{name}: ", Role.PLAIN),
            (text, Role.CLASSIC_VALUE if value else Role.DIM),
            (" " * (column - width_of(name) - 2 - len(text)), Role.PLAIN),
        ]
    return fit(spans, width)


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
