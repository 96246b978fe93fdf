"""`neuron-run --explain`: explains each compile on stderr, when it happens."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from neurontools.base.text import printable_lines
from neurontools.cache.why.explain import LiveExplainer
from neurontools.cache.why.report import ReportStyle, format_compile
from neurontools.errors import NeuronToolsError
from neurontools.xla.distributed import workers
from neurontools.xla.program import EAGER

if TYPE_CHECKING:
    from neurontools.cache.lookup import CacheResult
    from neurontools.cache.store import CompileCache
    from neurontools.compiler.graph import Graph

_WIDTH = 80


class CompileExplainer:
    """Explains the compiles of this process.

    Args:
        cache: the cache that stores the compiled graphs.
    """

    def __init__(self, cache: CompileCache) -> None:
        self._live = LiveExplainer(cache.root)
        self._count = 0
        self._is_eager = False

    def explain(self, graph: Graph, result: CacheResult) -> None:
        """Explain a compile. Never fails: it reports graphs that cannot be compared."""
        if graph.cut.startswith(EAGER):
            if not self._is_eager:
                _write("eager mode compiles each operator: such compiles are not explained\n")
            self._is_eager = True
            return
        self._count += 1
        if not result.entry:
            _write(f"{self._count}. compiled, but not stored, so it cannot be compared: {graph.cut}\n")
            return
        try:
            explanation = self._live.explain(result.entry, result.seconds)
        except (NeuronToolsError, OSError) as error:
            _write(f"{self._count}. compiled, but cannot be compared: {error}\n")
            return
        _write(format_compile(self._count, explanation, _style()) + "\n")


def _style() -> ReportStyle:
    is_terminal = sys.stderr.isatty()
    colour = is_terminal or bool(os.environ.get("FORCE_COLOR"))
    return ReportStyle(
        width=shutil.get_terminal_size((_WIDTH, 24)).columns if is_terminal else _WIDTH,
        colour=colour and not os.environ.get("NO_COLOR"),
        directory=os.getcwd().rstrip("/") + "/",
    )


def _write(text: str) -> None:
    worker = f"rank {workers.rank()}: " if workers.world_size() > 1 else ""
    sys.stderr.write(worker + printable_lines(text, styled=True))
