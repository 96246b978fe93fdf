"""The classic screen of the real neuron-top as a page: what its keys do; its panes are drawn by `top_screen`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from neurontools.machine.memory_tree import NodeKind
from neurontools.tui.top.page import Page
from neurontools.tui.top.screen import panes, text_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        """Return how many lines show every device and the whole tree as it is open."""
        return text_lines(model) - 3

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return the numbers of the current tab."""
        view = model.view
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
                "system": {"user": model.system_cpu.user, "system": model.system_cpu.system},
                "runtime": {"user": model.runtime_cpu.user, "system": model.runtime_cpu.system},
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
