"""The classic screen of the real neuron-top as a page, and the actions of its keys; `screen.py` draws its panes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from neurontools.machine.memory_tree import NodeKind
from neurontools.tui.top.page import Page
from neurontools.tui.top.pages.memory import first_row
from neurontools.tui.top.pages.rows import tab_at
from neurontools.tui.top.screen import layout_for, panes, text_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.geometry import Size

    from neurontools.machine.memory_tree import MemoryNode
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.widgets.lines import Line


class ClassicPage(Page):
    """Utilization, vCPUs, memory summary and tree."""

    name = "overview"
    title = "Overview"

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return everything between title and bottom bar."""
        shown = panes(model, width, height + 3)
        return (*shown.cores, *shown.cpu, *shown.summary, *shown.details)

    def wanted_lines(self, model: TopModel) -> int:
        """Return the number of lines for every device and the opened tree."""
        return text_lines(model) - 3

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


class ClassicActions:
    """Mixin of the app: actions of the classic page."""

    model: TopModel

    def paint(self) -> None:
        """Show the model."""
        raise NotImplementedError

    def action_move(self, steps: int) -> None:
        """Move the selection in the tree."""
        self.model.tree.move(steps)
        self.paint()

    def action_toggle_row(self) -> None:
        """Open or close the selected row."""
        self.model.tree.toggle()
        self.paint()

    def action_expand(self) -> None:
        """Open the selected row."""
        self.model.tree.expand()
        self.paint()

    def action_collapse(self) -> None:
        """Close the selected row or go to its parent."""
        self.model.tree.collapse()
        self.paint()

    def action_toggle_all(self) -> None:
        """Open or close the whole tree."""
        self.model.tree.toggle_all()
        self.paint()

    def action_step_tab(self, steps: int) -> None:
        """Go to the previous or next tab."""
        self.model.step_tab(steps)
        self.paint()

    def action_tab(self, number: int) -> None:
        """Go to a tab by its number on the screen."""
        self.model.go_to_tab(number - 1)
        self.paint()

    def action_flops(self) -> None:
        """Switch between utilization and FLOPS."""
        self.model.toggle_flops()
        self.paint()

    def click_classic(self, x: int, y: int, size: Size) -> None:
        """Select the row or the tab under the mouse; a click on the selected row toggles it."""
        row = self._row_at(y, size)
        if row is not None:
            if row == self.model.tree.selected:
                self.model.tree.toggle()
            else:
                self.model.tree.select(row)
        elif y == size.height - 2:
            tab = tab_at(self.model, size.width, x)
            if tab is not None:
                self.model.go_to_tab(tab)

    def _row_at(self, y: int, size: Size) -> int | None:
        layout = layout_for(self.model, *size)
        top = size.height - 2 - layout.tree_lines
        if not top <= y < size.height - 2:
            return None
        index = first_row(self.model, layout.tree_lines) + y - top
        return index if index < len(self.model.tree.rows) else None
