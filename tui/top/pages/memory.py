"""The two memory panes of neuron-top as lines of text: the summary by category, and the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.memory_tree import NodeKind
from neurontools.machine.snapshot import MemoryUse
from neurontools.tui.top.numbers import size
from neurontools.tui.top.pages.memory_tree import DEVICE_LABELS, HOST_LABELS, label
from neurontools.tui.top.pages.rows import section, section_heads
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.pages.memory_tree import TreeRow

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
