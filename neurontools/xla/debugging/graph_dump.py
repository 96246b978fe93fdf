"""Graphs as text or Graphviz input, appended to XLA_SAVE_TENSORS_FILE at each synchronization.

Source: PyTorch/XLA documentation, "Troubleshooting", environment variables; the file has the layout that
its `scripts/grab_graphs.py` reads. There is no HLO here, so `XLA_SAVE_TENSORS_FMT=hlo` is refused.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.cache.graph_facts import SCALAR_INPUT, Operand
from neurontools.cache.graph_reader import facts_of_graph
from neurontools.compiler.graph import reads
from neurontools.compiler.work import written
from neurontools.errors import UsageError
from neurontools.xla.debugging.compile_log import python_frames
from neurontools.xla.debugging.debug_files import append_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.cache.graph_facts import GraphFacts, OperatorCall, TensorType
    from neurontools.compiler.graph import Graph
    from neurontools.xla.accelerator import LoadedGraph

_SHAPES = {
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"s{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    "bfloat16": "bf16",
    "bool": "pred",
    "complex64": "c64",
    "complex128": "c128",
}
"""XLA's names of data types; other types keep torch's names."""
_MAX_LABEL = 64
_lock = threading.Lock()


def check_format() -> str:
    """Return the format that XLA_SAVE_TENSORS_FMT names.

    Raises:
        UsageError: the format is not supported.
    """
    chosen = os.environ.get("XLA_SAVE_TENSORS_FMT") or "text"
    if chosen not in {"text", "dot"}:
        reason = "graphs have no HLO here" if chosen in {"hlo", "stablehlo"} else "there is no such format"
        raise UsageError(f"XLA_SAVE_TENSORS_FMT={chosen}: {reason}", "use text or dot")
    return chosen


def save_graph(loaded: LoadedGraph, index: int) -> None:
    """Append a graph that is about to run to XLA_SAVE_TENSORS_FILE; the device number is added to the file's name."""
    frames = "".join(f"  {frame}\n" for frame in python_frames())
    facts = facts_of_graph(loaded.graph)
    graph = to_dot(facts) if check_format() == "dot" else to_text(facts)
    text = (
        f"[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n{frames}\nRoot Hashes: ({loaded.digest[:32]})\n\n"
        f"## BEGIN_GRAPH\n{graph}\nGraph Hash: {loaded.digest[:32]}\n\n## END_GRAPH\n\n"
    )
    variable = "XLA_SAVE_TENSORS_FILE"
    with _lock:
        append_text(variable, f"{os.environ[variable]}.{index}", text)


def recorded_text(graph: Graph, held: Sequence[TensorType] = ()) -> str:
    """Return the operators of a graph that its outputs need, as text.

    Args:
        graph: the graph.
        held: further tensors, which have values: they are inputs.
    """
    needed = set(graph.outputs)
    calls = []
    for call in reversed(graph.nodes):
        changed = {view.slot for view in (*call.results, *written(call)) if view is not None}
        if not needed.isdisjoint(changed):
            needed |= {view.slot for view in reads(call)}
            calls.append(call)
    inputs = tuple(slot for slot in graph.inputs if slot in needed)
    facts = facts_of_graph(replace(graph, inputs=inputs, nodes=tuple(reversed(calls))))
    roots = [Operand(-1 - len(inputs) - number, 0, tensor, "") for number, tensor in enumerate(held)]
    return to_text(replace(facts, inputs=(*facts.inputs, *held), outputs=(*facts.outputs, *roots)))


def to_text(facts: GraphFacts) -> str:
    """Return a graph as text, with a line for each input and operator."""
    lines = [
        f"  %{number} = {shape} {name}({', '.join(operands)}){''.join(f', {tag}' for tag in tags)}\n"
        for number, shape, name, operands, tags in _nodes(facts)
    ]
    return f"IR {{\n{''.join(lines)}}}\n"


def to_dot(facts: GraphFacts) -> str:
    """Return a graph as input of Graphviz."""
    lines, edges = [], []
    for number, shape, name, operands, tags in _nodes(facts):
        label = "\\n".join([name, shape, *(_shortened(tag) for tag in tags)]).replace('"', "'")
        lines.append(f'  node{number} [label="{label}"]\n')
        for position, operand in enumerate(operands):
            source, _, result = operand.removeprefix("%").partition(".")
            notes = [f"i={position}"] * (len(operands) > 1) + [f"o={result}"] * bool(result)
            edges.append(
                f"  node{source} -> node{number}" + (f' [label="{",".join(notes)}"]' if notes else "") + "\n"
            )
    return f"digraph G {{\n{''.join(lines)}{''.join(edges)}}}\n"


def _nodes(facts: GraphFacts) -> Iterator[tuple[int, str, str, list[str], list[str]]]:
    """Yield number, shape, name, operands and attributes of each input and operator."""
    inputs = len(facts.inputs)
    roots = {(output.producer, output.result): position for position, output in enumerate(facts.outputs)}
    for number, tensor in enumerate(facts.inputs):
        root = roots.get((-1 - number, 0))
        tags = ["device=xla:0"] + ([] if root is None else [f"ROOT={root}"])
        yield number, _shape(tensor), "xla::device_data", [], tags
    for position, operation in enumerate(facts.operations):
        operands = [_reference(operand, inputs, facts.operations) for operand in operation.operands]
        own_roots = [f"ROOT={root}" for (producer, _), root in roots.items() if producer == position]
        tags = [*_attributes(operation), *own_roots]
        namespace, _, name = operation.name.partition(".")
        yield inputs + position, _shapes(operation.results), f"{namespace}::{name}", operands, tags


def _reference(operand: Operand, inputs: int, operations: Sequence[OperatorCall]) -> str:
    if operand.producer < 0:
        return f"%{operand.input_number}"
    result = f".{operand.result}" if len(operations[operand.producer].results) > 1 else ""
    return f"%{inputs + operand.producer}{result}"


def _attributes(operation: OperatorCall) -> Iterator[str]:
    constants = [constant for constant in operation.constants if SCALAR_INPUT not in constant]
    scalars = len(operation.constants) - len(constants)
    if len(operation.results) > 1:
        yield f"num_outputs={len(operation.results)}"
    for position, operand in enumerate(operation.operands):
        if operand.window:
            yield f"view{position}={_shape(operand.tensor)} {operand.window}"
    if constants:
        yield f"arguments=({', '.join(constants)})"
    if scalars:
        yield f"scalar_inputs={scalars}"
    if operation.source:
        yield f"location={operation.source}"


def _shapes(tensors: Sequence[TensorType]) -> str:
    return _shape(tensors[0]) if len(tensors) == 1 else f"({', '.join(map(_shape, tensors))})"


def _shape(tensor: TensorType) -> str:
    layout = ",".join(str(dimension) for dimension in reversed(range(len(tensor.shape))))
    sizes = ",".join(map(str, tensor.shape))
    return f"{_SHAPES.get(tensor.dtype, tensor.dtype)}[{sizes}]" + (f"{{{layout}}}" if layout else "")


def _shortened(text: str) -> str:
    return text if len(text) < _MAX_LABEL else f"{text[:_MAX_LABEL]}..."
