"""Programs: the graph of a recording, compiled or found in the cache, loaded on a core, with its executable."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.compiler.graph import Graph, Slot
from neurontools.xla import metrics
from neurontools.xla.accelerator import Program
from neurontools.xla.buffers import layout_bytes
from neurontools.xla.compile_log import current_source
from neurontools.xla.custom_op_graph import libraries_of, native_inputs
from neurontools.xla.debug_analysis import show_compilation, shows_compilations
from neurontools.xla.execution import generate, overload_of
from neurontools.xla.operators import operator_of

if TYPE_CHECKING:
    from neurontools.xla.accelerator import Accelerator, LoadedGraph
    from neurontools.xla.numerics import DeviceNumerics
    from neurontools.xla.trie import TrieNode

EAGER = "eager mode"
"""What ends a graph of a single operator in eager mode; debugging output leaves such graphs out."""


def build_graph(
    leaf: TrieNode, live: tuple[int, ...], libraries: tuple[str, ...] = (), cut: str = ""
) -> Graph:
    """Return the graph of a recording.

    Args:
        leaf: its last call.
        live: slots that are still referenced at the sync.
        libraries: sha256 of every native library whose operators the path calls.
        cut: what ended the recording.
    """
    slots: list[Slot] = []
    inputs: list[int] = []
    nodes = []
    for node in leaf.path():
        inputs += range(len(slots), len(slots) + node.bound)
        slots += [Slot(layout_bytes(layout_id)) for layout_id in node.added]
        assert node.call is not None
        nodes.append(node.call)
    return Graph(
        slots=tuple(slots),
        inputs=tuple(inputs),
        lifted=leaf.lifted,
        nodes=tuple(nodes),
        outputs=live,
        libraries=libraries,
        cut=cut,
    )


def input_layouts(leaf: TrieNode) -> tuple[int, ...]:
    """Return the layout id of every input of a recording, in the graph's order."""
    return tuple(layout_id for node in leaf.path() for layout_id in node.added[: node.bound])


class ProgramStore:
    """The programs of one device in this process, by graph digest."""

    def __init__(self, accelerator: Accelerator, index: int, numerics: DeviceNumerics | None = None) -> None:
        self._accelerator = accelerator
        self._numerics = numerics
        self._index = index
        self._loaded: dict[str, LoadedGraph] = {}

    def build(self, leaf: TrieNode, live: tuple[int, ...], cause: str) -> Program:
        """Return the program of a recording that has none yet; compiles when the cache lacks the graph.

        `leaf` and `live` are as in `build_graph`, `cause` is what ended the recording.
        """
        libraries = libraries_of(node.call.op for node in leaf.path() if node.call)
        graph = build_graph(leaf, live, libraries, f"{cause} at {current_source() or 'an unknown line'}")
        loaded = self._load(graph, cause)
        inputs = set(graph.inputs)
        fresh = tuple(slot for slot in live if slot not in inputs)
        return Program(
            loaded=loaded,
            function=generate(loaded.graph, input_layouts(leaf), self._numerics),
            inputs=loaded.graph.inputs,
            fresh=fresh,
            fresh_bytes=sum(graph.slots[slot].nbytes for slot in fresh),
            random=any(operator_of(overload_of(node)).random for node in loaded.graph.nodes),
            native=native_inputs(loaded.graph),
        )

    def _load(self, graph: Graph, cause: str) -> LoadedGraph:
        digest = graph.digest()
        known = self._loaded.get(digest)
        if known is not None:
            metrics.count("CachedCompile")
            return known
        start_ns = time.perf_counter_ns()
        loaded = self._accelerator.load(self._index, graph)
        metrics.count("CachedCompile" if loaded.hit else "UncachedCompile")
        metrics.sample("CompileTime", time.perf_counter_ns() - start_ns)
        metrics.sample("GraphSize", len(graph.nodes), "")
        if cause != EAGER and shows_compilations():
            show_compilation(graph, loaded, cause)
        self._loaded[digest] = loaded
        return loaded
