"""Log lines about compilations: those of PT_XLA_DEBUG, and one at the end of the program."""

# ruff: noqa: SLF001
# Torch's signatures and private API.

from __future__ import annotations

import atexit
import logging
import os
import shlex
import sys
from typing import TYPE_CHECKING

import torch

import neurontools
from neurontools.cache.location import DEFAULT_ROOT
from neurontools.xla import metrics

if TYPE_CHECKING:
    from types import FrameType

    from neurontools.compiler.graph import Graph
    from neurontools.xla.accelerator import LoadedGraph

# The first step and the second one, in which an optimizer has its state, are new graphs in every program.
_USUAL_COMPILES = 2

_log = logging.getLogger("neurontools.xla")

_NOT_USERS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(neurontools.__file__) + os.sep,
    "<neurontools ",
)


def report_at_exit(root: str) -> None:
    """Report the number of compiles when the program ends."""
    atexit.unregister(report_compiles)
    atexit.register(report_compiles, root)


def report_compiles(root: str) -> None:
    """Report on a terminal how many graphs this program compiled, if that is more than usual."""
    compiled = metrics.counters().get("UncachedCompile", 0)
    if compiled > _USUAL_COMPILES and os.environ.get("LOCAL_RANK", "0") == "0" and sys.stderr.isatty():
        where = "" if root == DEFAULT_ROOT else f" --cache-dir {shlex.quote(root)}"
        sys.stderr.write(f"{compiled} graphs compiled; to see why: neuron-cache why --last{where}\n")


def debug_level() -> int:
    """Return PT_XLA_DEBUG_LEVEL, 100 when PT_XLA_DEBUG=1 alone is set, else 0."""
    level = os.environ.get("PT_XLA_DEBUG_LEVEL", "")
    if level.isdecimal():
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


def current_source() -> str:
    """Return `file:line` of the innermost frame outside torch and this package, "" where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_USERS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
