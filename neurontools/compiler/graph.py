"""The canonical graph: what the lazy device records, what is hashed, and what a NEFF carries.

A graph works on *slots*. A slot is one device buffer; tensors are views of slots (shape, strides, offset), so aliasing
and in-place operators keep their meaning. Operators are named as torch names them (`aten.mm.default`). Source lines
and layers travel with the nodes but do not take part in the hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neurontools.compiler.graph_nodes import (
    Arg,
    GraphError,
    Lifted,
    Node,
    Slot,
    Symbol,
    View,
    contiguous_strides,
    reads,
    views,
)
from neurontools.compiler.graph_storage import (
    decode,
    dump_calls,
    dump_sources,
    encode,
    integers,
    load_calls,
    load_sources,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Arg",
    "Graph",
    "GraphError",
    "Lifted",
    "Node",
    "Slot",
    "Symbol",
    "View",
    "contiguous_strides",
    "graph_from_bytes",
    "module_hash_of",
    "reads",
    "views",
]

_DAMAGE = AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError
_LARGEST = 2**63 - 1  # bytes of a slot


@dataclass(frozen=True, slots=True)
class Graph:
    """A straight line of operator calls.

    Args:
        slots: every buffer, indexed by slot number.
        inputs: slots that hold data when the graph starts, in binding order.
        lifted: number of scalar inputs.
        nodes: the calls in order.
        outputs: slots that somebody can still see when the graph ends.
        libraries: sha256 of every native library whose operators the graph calls.
        cut: what ended the recording, as `cause at file:line`; like source lines no part of the hash.
    """

    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    lifted: int
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    libraries: tuple[str, ...] = ()
    cut: str = ""

    _digest: str = field(default="", init=False, repr=False, compare=False)
    _line: str = field(default="", init=False, repr=False, compare=False)

    def with_calls(self, slots: Sequence[Slot], nodes: Sequence[Node]) -> Graph:
        """Return the graph with other buffers and calls."""
        return replace(self, slots=tuple(slots), nodes=tuple(nodes))

    def to_bytes(self) -> bytes:
        """Return the stored form, the same for equal graphs."""
        sources = dump_sources(self.nodes, self.cut)
        return (f"{self._stored_line()}\n{sources}" if sources else self._stored_line()).encode()

    def digest(self) -> str:
        """Return the sha256 (hex) that identifies the graph: everything but source lines, layers and cut."""
        if not self._digest:
            object.__setattr__(self, "_digest", hashlib.sha256(self._stored_line().encode()).hexdigest())
        return self._digest

    def release_stored_form(self) -> None:
        """Free the memory of the stored form, which a compile needs several times and nothing needs later."""
        object.__setattr__(self, "_line", "")

    def _stored_line(self) -> str:
        if not self._line:
            fields = {
                "slots": [slot.nbytes for slot in self.slots],
                "inputs": self.inputs,
                "lifted": self.lifted,
                "outputs": self.outputs,
                "libraries": self.libraries,
                **dump_calls(self.nodes),
            }
            object.__setattr__(self, "_line", encode(fields))
        return self._line

    def module_hash(self) -> str:
        """Return the decimal uint64 that names the MODULE directory."""
        return module_hash_of(self.digest())

    def to_text(self) -> str:
        """Return one line per operator, for people."""
        return "".join(_line(node) + "\n" for node in self.nodes)


def module_hash_of(digest: str) -> str:
    """Return the decimal uint64 that stands for a graph's digest in directory names."""
    return str(int(digest[:16], 16))


def graph_from_bytes(data: bytes) -> Graph:
    """Return the graph that `to_bytes` stored, checked.

    Raises:
        GraphError: the bytes are damaged, of another schema, or refer to slots that do not exist.
    """
    line, _, sources = data.partition(b"\n")
    try:
        stored = decode(line)
        cut, places = load_sources(sources)
        sizes, (lifted,) = integers(stored["slots"]), integers([stored["lifted"]])
        inputs, outputs = integers(stored["inputs"]), integers(stored["outputs"])
        _check(sizes, (*inputs, *outputs))
        graph = Graph(
            slots=tuple(map(Slot, sizes)),
            inputs=inputs,
            lifted=lifted,
            nodes=load_calls(stored, places, len(sizes), lifted),
            outputs=outputs,
            libraries=tuple(str(library) for library in stored["libraries"]),
            cut=cut,
        )
    except _DAMAGE as error:
        raise GraphError(f"not a graph: {type(error).__name__}: {error}") from error
    object.__setattr__(graph, "_digest", hashlib.sha256(line).hexdigest())
    return graph


def _check(sizes: tuple[int, ...], borders: tuple[int, ...]) -> None:
    if any(not 0 <= slot < len(sizes) for slot in borders):
        raise GraphError(f"an input or output refers to a slot outside 0..{len(sizes) - 1}")
    if sizes and not 0 <= min(sizes) <= max(sizes) <= _LARGEST:
        raise GraphError("a size, stride or offset is out of range")


def _line(node: Node) -> str:
    results = ", ".join("-" if view is None else _show(view) for view in node.results)
    arguments = [_show(arg) for arg in node.args] + [f"{name}={_show(arg)}" for name, arg in node.kwargs]
    return f"{results} = {node.op}({', '.join(arguments)})" + (f"  # {node.source}" if node.source else "")


def _show(arg: Arg) -> str:
    match arg:
        case View():
            return f"%{arg.slot}:{arg.dtype}[{','.join(map(str, arg.shape))}]"
        case Lifted():
            return f"${arg.index}"
        case Symbol():
            return arg.name
        case tuple():
            return "[" + ", ".join(_show(item) for item in arg) + "]"
        case _:
            return repr(arg)
