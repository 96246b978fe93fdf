"""The two memory panes of neuron-top as lines of text: the summary by category, and the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.memory_tree import NodeKind
from neurontools.machine.snapshot import MemoryUse
from neurontools.tui.top.numbers import size
from neurontools.tui.top.pages.memory_tree import label
from neurontools.tui.top.pages.rows import section, section_heads
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed, width_of

if TYPE_CHECKING:
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.pages.memory_tree import TreeRow

Pair = tuple[str, int]

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
    rows = (_host_pairs(host, long=long), _device_pairs(device, long=long))
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
    name_width = _name_width(width)
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
    text, number = Role.PLAIN, Role.VALUE
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


def _name_width(width: int) -> int:
    return min(_WIDEST_NAME, width - _MODEL_ID_WIDTH - 2 * _MEMORY_WIDTH - 1)


def _summary_table(host: MemoryUse, device: MemoryUse, width: int) -> tuple[Line, ...]:
    heads = ("Total", "Tensors", "Const", "Code", "Runtime", "Scratch", "DMA", "App")
    rows = (
        (
            host.total_bytes,
            host.tensors,
            host.constants,
            None,
            None,
            None,
            host.dma_buffers,
            host.application_memory,
        ),
        (
            device.total_bytes,
            device.tensors,
            device.constants,
            device.model_code,
            device.runtime_memory,
            device.model_shared_scratchpad,
            None,
            None,
        ),
    )
    columns = min(len(heads), (width - _TABLE_LABEL) // _TABLE_COLUMN)
    titles = (head.rjust(_TABLE_COLUMN) for head in heads[:columns])
    lines = [section_heads((" Memory".ljust(_TABLE_LABEL), *titles), width)]
    for name, row in zip((" Host", " Device"), rows, strict=True):
        spans: list[Span] = [(name.ljust(_TABLE_LABEL), Role.PLAIN)]
        spans += [
            ("" if value is None else size(value), Role.VALUE if value else Role.DIM)
            for value in row[:columns]
        ]
        padded = [spans[0], *((text.rjust(_TABLE_COLUMN), role) for text, role in spans[1:])]
        lines.append(fit(padded, width))
    return tuple(lines)


def _host_pairs(use: MemoryUse, *, long: bool) -> tuple[Pair, ...]:
    return (
        ("Total", use.total_bytes),
        ("Tensors", use.tensors),
        ("Constants", use.constants),
        ("DMA Buffers" if long else "DMA", use.dma_buffers),
        ("App. Memory" if long else "App.", use.application_memory),
    )


def _device_pairs(use: MemoryUse, *, long: bool) -> tuple[Pair, ...]:
    return (
        ("Total", use.total_bytes),
        ("Tensors", use.tensors),
        ("Constants", use.constants),
        ("Model Code" if long else "Code", use.model_code),
        ("Runtime Memory" if long else "Runtime", use.runtime_memory),
        ("Model Scratchpad" if long else "Scratchpad", use.model_shared_scratchpad),
    )


def _pairs_line(head: str, pairs: tuple[Pair, ...], widths: list[int], width: int) -> Line:
    spans: list[Span] = [(head, Role.PLAIN)]
    for (name, value), column in zip(pairs, widths, strict=False):
        text = size(value)
        spans += [
            (f"{name}: ", Role.PLAIN),
            (text, Role.VALUE if value else Role.DIM),
            (" " * (column - width_of(name) - 2 - len(text)), Role.PLAIN),
        ]
    return fit(spans, width)
