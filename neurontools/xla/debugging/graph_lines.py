"""The user's lines and layers behind the code that torch.compile generates."""

# Torch's private API.

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.graph_nodes import BACKWARD
from neurontools.xla.debugging.compile_log import COMPILED, NOT_USERS

if TYPE_CHECKING:
    from types import FrameType

_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)
_VARIABLE = re.compile(r"^[LG]\['\w+'\](\.__closure__\[\d+\]\.cell_contents)?")
_MODULE = re.compile(r"\._modules\['(\w+)'\]")
_known: weakref.WeakKeyDictionary[torch.fx.GraphModule, dict[int, tuple[str, str]]] = (
    weakref.WeakKeyDictionary()
)


def origin_of(frame: FrameType, line: int) -> tuple[str, str]:
    """Return the user's `file:line` and the layer of what a line of generated code calls; "" where there is none."""
    if not frame.f_code.co_filename.startswith(COMPILED):
        return "", ""
    graph = frame.f_locals.get("self")
    if not isinstance(graph, torch.fx.GraphModule):
        return "", ""
    origins = _known.get(graph)
    if origins is None:
        origins = _known[graph] = _origins(graph)
    return origins.get(line - frame.f_code.co_firstlineno, ("", ""))


def source_of(node: torch.fx.Node) -> str:
    """Return the user's `file:line` of a node, "" if it has none."""
    frames = _FRAME.findall(node.stack_trace or "")
    return next((f"{file}:{line}" for file, line in reversed(frames) if not file.startswith(NOT_USERS)), "")


def _origins(graph: torch.fx.GraphModule) -> dict[int, tuple[str, str]]:
    """Return source and layer by the line of the graph's code."""
    nodes = list(graph.graph.nodes)
    lines: dict[int, int | None] = getattr(graph, "_lineno_map", None) or {}
    return {
        line: (source_of(nodes[position]), _layer(nodes[position].meta))
        for line, position in lines.items()
        if position is not None
    }


def _layer(meta: dict[str, Any]) -> str:
    forward = meta.get("nn_module_stack")
    modules = list((forward or meta.get("fwd_nn_module_stack") or {}).values())
    suffix = BACKWARD if not forward and "autograd_backward" in meta else ""
    if not modules:
        return suffix
    (outermost, kind), (innermost, _) = modules[0], modules[-1]
    root = "" if _path(outermost) else (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
    return f"{root}{_path(innermost)}".removeprefix(".") + suffix


def _path(name: str) -> str:
    """Return the path of a module below a variable: `.blocks.0` for `L['self']._modules['blocks'].0`."""
    return _VARIABLE.sub("", _MODULE.sub(r".\1", name))
