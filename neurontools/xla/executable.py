"""Programs: a recording's graph, compiled or found in the cache, loaded on a core, with its executable."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.xla import metrics
from neurontools.xla.debug import announce_compilation
from neurontools.xla.interp import generate, overload_of
from neurontools.xla.native import libraries_of, native_inputs
from neurontools.xla.operators import operator_of
from neurontools.xla.program import Program
from neurontools.xla.source import current_source
from neurontools.xla.trace import build_graph, input_forms

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph
    from neurontools.xla.engine import LoadedGraph, Machine
    from neurontools.xla.trie import TrieNode


class ProgramStore:
    """The programs of one device in this process, by graph digest."""

    def __init__(self, machine: Machine, index: int) -> None:
        self._machine = machine
        self._index = index
        self._loaded: dict[str, LoadedGraph] = {}

    def build(self, leaf: TrieNode, live: tuple[int, ...], cause: str) -> Program:
        """Return the program of a recording that has none yet; compiles when the cache lacks the graph.

        Args:
            leaf: the last call of the recording.
            live: slots that somebody can still see.
            cause: why the recording was cut.
        """
        libraries = libraries_of(node.call.op for node in leaf.path() if node.call)
        graph = build_graph(leaf, live, libraries, f"{cause} at {current_source() or 'an unknown line'}")
        loaded = self._load(graph, cause)
        inputs = set(graph.inputs)
        fresh = tuple(slot for slot in live if slot not in inputs)
        return Program(
            loaded=loaded,
            function=generate(loaded.graph, input_forms(leaf)),
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
        loaded = self._machine.load(self._index, graph)
        metrics.count("CachedCompile" if loaded.hit else "UncachedCompile")
        metrics.sample("CompileTime", time.perf_counter_ns() - start_ns)
        metrics.sample("GraphSize", len(graph.nodes), "")
        announce_compilation(graph, loaded, cause)
        self._loaded[digest] = loaded
        return loaded
