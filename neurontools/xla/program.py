"""Programs: the graph of a recording, compiled or found in the cache, loaded on a core, with its executable."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from neurontools.base.garbage import without_collection
from neurontools.compiler.graph import Graph, Slot
from neurontools.compiler.neff import network_name
from neurontools.runtime.host_activity import HostEvent, observers, report
from neurontools.xla.accelerator import Program
from neurontools.xla.custom_op_graph import libraries_of, native_inputs
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import current_source, event_source, refined
from neurontools.xla.debugging.debug_analysis import show_compilation, shows_compilations
from neurontools.xla.execution import generate, overload_of
from neurontools.xla.geometry import layout_bytes
from neurontools.xla.operators import operator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.compiler.graph import Node
    from neurontools.compiler.options import CompileError
    from neurontools.xla.accelerator import Accelerator, Executable, LoadedGraph
    from neurontools.xla.core_arithmetic.arithmetic import DeviceNumerics
    from neurontools.xla.recorded_trace import RecordedTrace

EAGER = "eager mode"
"""What ends a graph of a single operator in eager mode; debugging output leaves such graphs out."""


def build_graph(trace: RecordedTrace, live: tuple[int, ...], cut: str = "") -> Graph:
    """Return the graph of a recording.

    Args:
        trace: the recording.
        live: slots that are still referenced at the sync.
        cut: what ended the recording.
    """
    return Graph(
        slots=tuple(Slot(layout_bytes(layout_id)) for layouts in trace.added for layout_id in layouts),
        inputs=trace.inputs(),
        lifted=trace.lifted,
        nodes=trace.calls,
        outputs=live,
        libraries=libraries_of(call.op for call in trace.calls),
        cut=cut,
    )


class ProgramStore:
    """The programs of one device in this process, by graph digest."""

    def __init__(self, accelerator: Accelerator, index: int, numerics: DeviceNumerics | None = None) -> None:
        self._accelerator = accelerator
        self._numerics = numerics
        self._index = index
        self._loaded: dict[str, LoadedGraph] = {}

    def build(self, trace: RecordedTrace, live: tuple[int, ...], cause: str) -> Program:
        """Return the program of a recording that has none yet; compiles when the cache lacks the graph.

        `trace` and `live` are as in `build_graph`, `cause` is what ended the recording.
        """
        with without_collection():  # the objects of a graph have no cycles
            return self._build(trace, live, cause)

    def refusals(self, calls: Sequence[Node]) -> dict[int, CompileError]:
        """Return the errors of the calls that the compiler refuses in every graph, by their positions."""
        errors = enumerate(map(self._accelerator.refusal, calls))
        return {position: error for position, error in errors if error is not None}

    def _build(self, trace: RecordedTrace, live: tuple[int, ...], cause: str) -> Program:
        graph = build_graph(trace, live, f"{refined(cause)} at {current_source() or 'an unknown line'}")
        loaded = self._load(graph, cause)
        inputs = set(graph.inputs)
        fresh = tuple(slot for slot in live if slot not in inputs)
        return Program(
            loaded=loaded,
            executable=self._executable(loaded.graph, trace.input_layouts()),
            inputs=loaded.graph.inputs,
            fresh=fresh,
            fresh_bytes=sum(graph.slots[slot].nbytes for slot in fresh),
            random=any(operator_of(overload_of(node)).random for node in loaded.graph.nodes),
            native=native_inputs(loaded.graph),
        )

    def _executable(self, graph: Graph, input_layouts: Sequence[int]) -> Callable[[], Executable]:
        @functools.cache
        def executable() -> Executable:
            with without_collection():
                return generate(graph, input_layouts, self._numerics)

        return executable

    def _load(self, graph: Graph, cause: str) -> LoadedGraph:
        digest = graph.digest()
        known = self._loaded.get(digest)
        if known is not None:
            metrics.count("CachedCompile")
            return known
        start_ns = time.monotonic_ns()
        loaded = self._accelerator.load(self._index, graph)
        end_ns = time.monotonic_ns()
        metrics.count("CachedCompile" if loaded.hit else "UncachedCompile")
        metrics.sample("CompileTime", end_ns - start_ns)
        if observers:
            kind = HostEvent.CACHE_HIT if loaded.hit else HostEvent.COMPILE
            source = event_source()
            count = len(graph.nodes)
            report(
                kind, start_ns, end_ns, nc=self._index, name=network_name(graph), source=source, number=count
            )
        metrics.sample("TensorsGraphSize", len(graph.nodes), "")
        if cause != EAGER and shows_compilations():
            show_compilation(graph, loaded, cause)
        self._loaded[digest] = loaded
        return loaded
