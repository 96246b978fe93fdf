"""Reads an entry's graph file into `GraphFacts`: a canonical graph of this simulator, or an HLO module."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING

from neurontools.cache.graph_facts import (
    SCALAR_INPUT,
    GraphFacts,
    GraphForm,
    Operand,
    OperatorCall,
    TensorType,
)
from neurontools.cache.hlo import HloError, read_hlo
from neurontools.compiler.graph import GraphError, Lifted, Symbol, View, graph_from_bytes

if TYPE_CHECKING:
    from neurontools.compiler.graph import Arg, Graph, Node

MAX_GRAPH_BYTES = 1 << 26
_MOST_DIMENSIONS = 64


class UnreadableGraphError(Exception):
    """The file is not a graph that can be read; the message is the reason."""


def read_graph(data: bytes) -> GraphFacts:
    """Return a stored graph.

    Args:
        data: the file's content, which may be compressed by gzip.

    Raises:
        UnreadableGraphError: it is empty, damaged beyond use, or not a graph.
    """
    if data.startswith(b"\x1f\x8b"):
        data = _decompress(data)
    if not data:
        raise UnreadableGraphError("the graph file is empty or cannot be read")
    try:
        # An HLO module is a protocol buffer, a canonical graph is JSON and starts with a brace.
        return facts_of_graph(graph_from_bytes(data)) if data.startswith(b"{") else read_hlo(data)
    except (GraphError, HloError) as error:
        raise UnreadableGraphError(str(error)) from error


def facts_of_graph(graph: Graph) -> GraphFacts:
    """Return the facts of a canonical graph."""
    return _GraphReader(graph).read()


class _GraphReader:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._inputs = {slot: number for number, slot in enumerate(graph.inputs)}
        self._producers: dict[int, tuple[int, int]] = {slot: (-1 - n, 0) for slot, n in self._inputs.items()}
        self._first: dict[int, View] = {}
        self._last: dict[int, View] = {}
        # A large graph has few kinds of tensors, and many of each.
        self._windows: dict[tuple[tuple[int, ...], ...], str] = {}

    def read(self) -> GraphFacts:
        graph = self._graph
        operations = tuple(self._operation(number, node) for number, node in enumerate(graph.nodes))
        outputs = [self._operand(self._last[slot]) for slot in graph.outputs if slot in self._last]
        inputs = [self._first.get(slot) for slot in graph.inputs]
        changed = [self._inputs[slot] for slot in graph.outputs if slot in self._inputs]
        return GraphFacts(
            form=GraphForm.CANONICAL,
            inputs=tuple(TensorType("unused", ()) if view is None else _tensor(view) for view in inputs),
            input_names=("",) * len(graph.inputs),
            operations=operations,
            outputs=tuple(outputs),
            aliases=tuple(f"input {number} is changed in place" for number in changed),
            libraries=graph.libraries,
            cut=graph.cut,
            buffers_bytes=sum(slot.nbytes for slot in graph.slots),
        )

    def _operation(self, number: int, node: Node) -> OperatorCall:
        operands: list[Operand] = []
        constants: list[str] = []
        for name, arg in (*(("", arg) for arg in node.args), *node.kwargs):
            text = self._argument(arg, operands)
            if text:
                constants.append(f"{name}={text}" if name else text)
        for position, view in enumerate(node.results):
            if view is not None:
                self._note_view(view)
                self._producers.setdefault(view.slot, (number, position))
        results = tuple(_tensor(view) for view in node.results if view is not None)
        return OperatorCall(node.op, tuple(operands), results, tuple(constants), node.source)

    def _argument(self, arg: Arg, operands: list[Operand]) -> str:
        """Return a constant argument as text; append a tensor to the operands and return ""."""
        match arg:
            case View():
                self._note_view(arg)
                operands.append(self._operand(arg))
                return ""
            case Lifted():
                # Its number follows from the order of the operators.
                return SCALAR_INPUT
            case Symbol():
                return arg.name
            case tuple():
                if any(isinstance(item, View) for item in arg):
                    texts = [self._argument(item, operands) for item in arg]
                    return f"a list of {len(arg)}" if not any(texts) else f"[{', '.join(texts)}]"
                if len(arg) > 1 and all(isinstance(item, Lifted) for item in arg):
                    return f"[{SCALAR_INPUT} x{len(arg)}]"
                return "[" + ", ".join(self._argument(item, operands) for item in arg) + "]"
            case _:
                return repr(arg)

    def _operand(self, view: View) -> Operand:
        producer, result = self._producers.get(view.slot, (-1 - len(self._inputs), 0))
        kind = (view.shape, view.strides, (view.offset,))
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _window(view)
        return Operand(producer, result, _tensor(view), window)

    def _note_view(self, view: View) -> None:
        self._first.setdefault(view.slot, view)
        self._last[view.slot] = view


def _tensor(view: View) -> TensorType:
    return TensorType(view.dtype, view.shape)


def _window(view: View) -> str:
    if len(view.shape) > _MOST_DIMENSIONS:
        return ""
    plain = tuple(math.prod(view.shape[axis + 1 :]) for axis in range(len(view.shape)))
    strides = [s for s, p, n in zip(view.strides, plain, view.shape, strict=True) if n > 1 and s != p]
    if not strides and not view.offset:
        return ""
    return f"strides {','.join(map(str, view.strides))} at {view.offset}"


def _decompress(data: bytes) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, MAX_GRAPH_BYTES)
    except zlib.error as error:
        raise UnreadableGraphError(f"the gzip data is damaged: {error}") from error
