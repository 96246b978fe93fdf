"""The analyses of PT_XLA_DEBUG and PT_XLA_DEBUG_LEVEL: compilations, executions and metrics.

Source: PyTorch/XLA documentation, "Troubleshooting": level 1 shows compilations, level 2 executions too, and
PT_XLA_DEBUG=1 alone is level 100. PT_XLA_DEBUG_FILE is the file for the text, instead of stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.compiler.graph_memory import graph_sizes
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import python_frames
from neurontools.xla.debugging.debug_files import append_text
from neurontools.xla.distributed import workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
        from neurontools.xla.debugging.graph_dump import check_format, save_graph

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
