"""The analyses of PT_XLA_DEBUG and PT_XLA_DEBUG_LEVEL: compilations, executions and metrics.

Source: PyTorch/XLA documentation, "Troubleshooting": level 1 shows compilations, level 2 executions too, and
PT_XLA_DEBUG=1 alone is level 100. PT_XLA_DEBUG_FILE is the file for the text, instead of stderr.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.cache.graph_facts import SCALAR_INPUT, Operand
from neurontools.cache.graph_reader import facts_of_graph
from neurontools.compiler.graph import reads
from neurontools.compiler.limits import graph_sizes
from neurontools.compiler.work import written
from neurontools.errors import UsageError
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import python_frames
from neurontools.xla.debugging.metrics import append_text
from neurontools.xla.distributed import workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from neurontools.cache.graph_facts import GraphFacts, OperatorCall, TensorType
    from neurontools.compiler.graph import Graph
    from neurontools.xla.accelerator import LoadedGraph
    from neurontools.xla.debugging.compile_log import Frame

Observer = Callable[["LoadedGraph", str], None]
_ALL = 100
_COMPILATIONS, _EXECUTIONS = 1, 2
_MAX_FRAMES = 8
_RULE = "=" * 80
_STEP_CAUSES = frozenset({"mark_step"})
DYNAMO_INPUTS = "inputs of torch.compile(backend='openxla')"
DYNAMO_GRAPH = "torch.compile(backend='openxla')"
_READ = "most likely user code trying to access tensor value before torch_xla.sync"
_IN_LOADER = "torch_xla.sync in parallel loader at step end"
_IN_TRACE = "torch_xla.sync when exiting a profiler StepTrace region"
_DYNAMO = {
    ("Compilation", DYNAMO_INPUTS): "torch_xla.sync when dynamo processing input graphs",
    ("Execution", DYNAMO_INPUTS): "torch_xla.sync when dynamo processing input graphs",
    ("Compilation", DYNAMO_GRAPH): "dynamo is compiling a FX graph to HLO",
    ("Execution", DYNAMO_GRAPH): "dynamo is executing a compiled program",
}
_BEFORE_REGION = "torch_xla.compile clear the pending graph prior calling the target function"
_CALLERS = (
    ("__iter__", "parallel_loader.py", _IN_LOADER),
    ("__exit__", "profiler.py", _IN_TRACE),
    ("_clear_pending_ops_before_compile", os.path.join("torch_xla", "__init__.py"), _BEFORE_REGION),
    ("_compiled_region", os.path.join("torch_xla", "__init__.py"), "torch_xla.compile"),
)
_WARM_UP_STEPS = 10
_FREQUENT = (("CompileTime", _WARM_UP_STEPS), ("TransferFromDeviceTime", 0))
_FREQUENT_SHARE = 0.5
_SLOW_NS = (("CompileTime", 300e9), ("ExecuteTime", 30e9))
_READS_OF_VALUES = frozenset({"aten::_local_scalar_dense"})
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


def debug_level() -> int:
    """Return PT_XLA_DEBUG_LEVEL, 100 when PT_XLA_DEBUG=1 alone is set, else 0."""
    if not (env.is_set(b"PT_XLA_DEBUG") or env.is_set(b"PT_XLA_DEBUG_LEVEL")):
        return 0
    level = os.environ.get("PT_XLA_DEBUG_LEVEL", "")
    if level.isdecimal():
        return int(level)
    return _ALL if os.environ.get("PT_XLA_DEBUG", "0").lower() not in {"", "0", "false"} else 0


def shows_compilations() -> bool:
    """Return whether this process shows its compilations."""
    return debug_level() >= _COMPILATIONS and workers.local_rank() == 0


def execution_observers(index: int) -> tuple[Observer, ...]:
    """Return the observers to call before each execution on a device, from the environment: usually none.

    Args:
        index: the device.

    Raises:
        UsageError: XLA_SAVE_TENSORS_FMT is not a supported format.
    """
    observers: list[Observer] = []
    if os.environ.get("XLA_SAVE_TENSORS_FILE"):
        from neurontools.xla.debugging.debug_analysis import check_format, save_graph

        check_format()
        observers.append(lambda loaded, _: save_graph(loaded, index))
    if debug_level() >= _EXECUTIONS and workers.local_rank() == 0:
        observers.append(show_execution)
    return tuple(observers)


def show_compilation(graph: Graph, loaded: LoadedGraph, cause: str) -> None:
    """Show the analysis of a compilation, and the sizes of the compiled graph."""
    _show("Compilation Analysis: ", _graph_lines("Compilation", graph, loaded.digest, cause, python_frames()))
    _show("Post Compilation Analysis: ", _size_lines(graph, loaded.neff_bytes))


def show_execution(loaded: LoadedGraph, cause: str) -> None:
    """Show the analysis of an execution."""
    _show(
        "Execution Analysis: ",
        _graph_lines("Execution", loaded.graph, loaded.digest, cause, python_frames()),
    )


def show_metrics() -> None:
    """Show unusual metrics after a step."""
    lines = list(metric_findings())
    if lines:
        _write("".join(f"pt-xla-profiler: {line}\n" for line in lines))


def metric_findings() -> Iterable[str]:
    """Yield a line for each counter or metric that shows an avoidable cost."""
    counters, known = metrics.counters(), metrics.metrics()
    steps = counters.get("MarkStep", 0)
    for name, warm_up in _FREQUENT:
        metric = known.get(name)
        if metric is not None and steps > warm_up and metric.total_samples > steps * _FREQUENT_SHARE:
            yield f"{name} too frequent: {metric.total_samples} counts during {steps} steps"
    for name, limit_ns in _SLOW_NS:
        metric = known.get(name)
        longest_ns = max((value for _, value in metric.samples), default=0) if metric is not None else 0
        if longest_ns > limit_ns:
            yield f"{name} too slow: longest instance took {metrics.duration_text(longest_ns)}"
    fallbacks = [name for name in counters if name.startswith("aten::") and name not in _READS_OF_VALUES]
    if fallbacks:
        yield f"Op(s) not lowered: {', '.join(fallbacks)}; they ran on the CPU"


def cause_text(cause: str, frames: Sequence[Frame]) -> str:
    """Return the event that ended a graph, in the words of PyTorch/XLA."""
    if cause not in _STEP_CAUSES:
        return _READ
    for frame in frames:
        for function, file, text in _CALLERS:
            if frame.function == function and frame.file.endswith(file):
                return text
    return "user torch_xla.sync"


def _graph_lines(what: str, graph: Graph, digest: str, cause: str, frames: Sequence[Frame]) -> Iterable[str]:
    limit = os.environ.get("PT_XLA_DEBUG_MAX_FRAME", "")
    shown = int(limit) if limit.isdecimal() else _MAX_FRAMES
    yield f"{what} Cause"
    yield f"  {_DYNAMO.get((what, cause)) or cause_text(cause, frames)}"
    yield "Graph Info: "
    yield f"  Graph Hash: {digest[:32]}"
    yield f"  Number of Graph Inputs: {len(graph.inputs) + graph.lifted}"
    yield f"  Number of Graph Outputs: {len(graph.outputs)}"
    yield "Python Frame Triggered Execution: "
    yield from (f"  {frame}" for frame in frames[:shown])
    if len(frames) > shown:
        yield "  .........."


def _size_lines(graph: Graph, neff_bytes: int) -> Iterable[str]:
    sizes = graph_sizes(graph)
    for name, nbytes in (
        ("Graph input size", sizes.inputs),
        ("Graph output size", sizes.outputs),
        ("Aliased Input size", sizes.aliased),
        ("Intermediate tensor size", sizes.temporaries),
        ("Compiled program size", neff_bytes),
    ):
        yield f"{name}: {nbytes / (1 << 30):f} GB"


def _show(prefix: str, lines: Iterable[str]) -> None:
    block = [_RULE, *lines, "-" * 80, _RULE]
    _write("\n" + "".join(f"{prefix}{line}\n" for line in block))


def _write(text: str) -> None:
    path = os.environ.get("PT_XLA_DEBUG_FILE")
    if not path:
        sys.stderr.write(text)
        return
    append_text("PT_XLA_DEBUG_FILE", path, text)


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
