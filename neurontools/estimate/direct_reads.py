"""Products that read weights as they are stored: in 8 bits, or of chosen experts, without a copy of them.

A program widens 8-bit weights, or picks those of experts, before a product. Compiled code reads them from HBM into the
product: bytes as they are stored, from places that the choice gives. So no copy is scheduled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from neurontools.compiler.graph import Arg, Graph, Slot, View, reads
from neurontools.compiler.work import item_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.graph import Node

_PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.")


def read_directly(graph: Graph) -> Graph:
    """Return a graph whose products read stored weights themselves."""
    for is_copy in (_is_widening, _is_choice):
        graph = _without_copies(graph, is_copy)
    return graph


def _is_widening(node: Node) -> bool:
    return (
        node.op == "aten._to_copy.default"
        and isinstance(node.args[0], View)
        and item_bytes(node.args[0].dtype) == 1
    )


def _is_choice(node: Node) -> bool:
    return node.op == "aten.index.Tensor" and isinstance(node.args[0], View) and len(node.args[0].shape) == 3


def _without_copies(graph: Graph, is_copy: Callable[[Node], bool]) -> Graph:
    users: dict[int, set[str]] = {}
    for node in graph.nodes:
        for view in reads(node):
            users.setdefault(view.slot, set()).add(node.op)
    slots, nodes, sources = list(graph.slots), [], dict[int, View]()

    def direct(arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(map(direct, arg))
        if not isinstance(arg, View) or arg.slot not in sources:
            return arg
        source = sources[arg.slot]
        return structs.replace(arg, slot=source.slot, dtype=source.dtype)

    for node in graph.nodes:
        made, source = (node.results[0], node.args[0]) if is_copy(node) else (None, None)
        if (
            isinstance(made, View)
            and isinstance(source, View)
            and all(op.startswith(_PRODUCTS) for op in users.get(made.slot, ()))
        ):
            sources[made.slot] = source
            slots[made.slot] = Slot(0)
        else:
            nodes.append(structs.replace(node, args=direct(node.args)))
    return graph.with_calls(slots, nodes)
