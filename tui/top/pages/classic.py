"""The classic screen of the real neuron-top as a page, and its mouse; `screen.py` draws its panes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from neurontools.machine.memory_tree import NodeKind
from neurontools.tui.top.page import Page
from neurontools.tui.top.pages.memory import first_row
from neurontools.tui.top.pages.rows import tab_at, visible_tabs
from neurontools.tui.top.screen import CLASSIC_PANES, classic_frame, layout_for, text_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.geometry import Size

    from neurontools.machine.memory_tree import MemoryNode
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.widgets.lines import Line


class ClassicPage(Page):
    """Utilization, vCPUs, memory summary and tree."""

    name = "overview"
    letter = "o"

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return everything between title and bottom bar."""
        shown = classic_frame(model, width, height + 3)
        return [line for name in CLASSIC_PANES for line in shown[name]]

    def wanted_lines(self, model: TopModel) -> int:
        """Return the number of lines for every device and the opened tree."""
        return text_lines(model) - 3

    def scroll(self, model: TopModel, steps: int) -> None:
        """Move the selection in the tree."""
        model.tree.move(steps)

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return the numbers of the current tab."""
        view = model.shown.view
        if view is None:
            return {"devices": [], "memory": None}
        return {
            "mean_utilization": view.mean_utilization,
            "mean_flops_per_s": view.mean_flops_s,
            "total_flops_per_s": view.total_flops_s,
            "devices": [
                {
                    "device": device.index,
                    "lost": device.lost,
                    "cores": [
                        {"core": rate.core, "utilization": rate.utilization, "flops_per_s": rate.flops_s}
                        for rate in device.cores
                    ],
                }
                for device in view.devices
            ],
            "vcpus": {
                "system": {"user": model.shown.system_cpu.user, "system": model.shown.system_cpu.system},
                "runtime": {"user": model.shown.runtime_cpu.user, "system": model.shown.runtime_cpu.system},
            },
            "memory": {
                "host_bytes": asdict(view.memory.host),
                "device_bytes": asdict(view.memory.device),
                "tree": [_node(node) for node in view.memory.tree()],
            },
        }


def _node(node: MemoryNode) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": str(node.kind),
        "number": node.number,
        "name": node.name,
        "device_bytes": node.device_bytes,
        "host_bytes": node.host_bytes,
        "children": [_node(child) for child in node.children],
    }
    if node.kind is NodeKind.MODEL:
        found["running"] = node.running
    return found


def click_classic(model: TopModel, x: int, y: int, size: Size) -> None:
    """Select the row or the tab under the mouse; a click on the selected row toggles it."""
    row = _row_at(model, y, size)
    if row is not None:
        if row == model.tree.selected:
            model.tree.toggle()
        else:
            model.tree.select(row)
    elif y == size.height - 2:
        tab = tab_at(visible_tabs(model, size.width), x)
        if tab is not None:
            model.go_to_tab(tab)


def _row_at(model: TopModel, y: int, size: Size) -> int | None:
    layout = layout_for(model, *size)
    top = size.height - 2 - layout.tree_lines
    if not top <= y < size.height - 2:
        return None
    index = first_row(model, layout.tree_lines) + y - top
    return index if index < len(model.tree.rows) else None
