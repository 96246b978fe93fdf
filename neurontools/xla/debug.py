"""What PT_XLA_DEBUG tells about compilations (compile-runtime.md section 4.4), through the logger neurontools.xla."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from neurontools.xla.source import current_source

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph
    from neurontools.xla.engine import LoadedGraph

_log = logging.getLogger("neurontools.xla")


def debug_level() -> int:
    """Return PT_XLA_DEBUG_LEVEL, 100 when PT_XLA_DEBUG=1 alone is set, else 0."""
    level = os.environ.get("PT_XLA_DEBUG_LEVEL", "")
    if level.isdigit():
        return int(level)
    return 100 if os.environ.get("PT_XLA_DEBUG", "0") not in {"", "0"} else 0


def announce_compilation(graph: Graph, loaded: LoadedGraph, cause: str) -> None:
    """Log the analysis of a compilation: its cause, the graph and the line that cut it."""
    if debug_level() < 1:
        return
    _log.warning("%s", compilation_text(graph, loaded, cause, current_source()))


def compilation_text(graph: Graph, loaded: LoadedGraph, cause: str, source: str) -> str:
    """Return the block that PT_XLA_DEBUG prints for one compilation."""
    return "\n".join(
        f"Compilation Analysis: {line}"
        for line in (
            "=" * 80,
            "Compilation Cause",
            f"  {cause}",
            "Graph Info:",
            f"  Graph Hash: {loaded.digest[:32]}",
            f"  Number of Graph Inputs: {len(graph.inputs) + graph.lifted}",
            f"  Number of Graph Outputs: {len(graph.outputs)}",
            f"  Found in the persistent cache: {'yes' if loaded.hit else 'no'}",
            "Python Frame Triggered Execution:",
            f"  {source or 'unknown'}",
            "=" * 80,
        )
    )
