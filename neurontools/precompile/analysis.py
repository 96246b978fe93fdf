"""`--command analyze`: which operators of a program the device runs (AWS Neuron documentation, PyTorch NeuronX neuron_parallel_compile)."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools import __version__
from neurontools.cache import layouts
from neurontools.cache.entries import read_stored_flags
from neurontools.cache.entry_io import read_failure
from neurontools.compiler.graph import GraphError, graph_from_bytes
from neurontools.compiler.limits import type_error
from neurontools.compiler.options import COMPILER_VERSION, device_of
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.compiler.graph import Graph
    from neurontools.precompile.trial_run import TrialRun

RESULT = "result.json"
LOWERING = "Lowering to HLO"
COMPILER = "neuronx-cc"
_QUIET = 1
_ATEN = "aten"


@dataclass(frozen=True, slots=True)
class UnsupportedOperator:
    """An operator that the device does not support; `graph` is the text of its graph, "" if it is in none."""

    kind: str
    failure_at: str
    call: str
    graph: str = ""


@dataclass(frozen=True, slots=True)
class OperatorAnalysis:
    """The operators that a program calls on the device, with counts, and those not supported."""

    supported: tuple[tuple[str, int], ...]
    unsupported: tuple[UnsupportedOperator, ...]

    @property
    def percentage(self) -> float:
        """The share of the kinds of operators that are supported; 100 for a program without any."""
        bad = {item.kind for item in self.unsupported}
        good = {name for name, _ in self.supported} - bad
        return 100.0 * len(good) / len(good | bad) if good | bad else 100.0


def analyze(collected: TrialRun) -> OperatorAnalysis:
    """Return which of the operators that a trial run recorded are supported.

    Raises:
        NeuronToolsError: a graph of the run cannot be read.
    """
    counts: Counter[str] = Counter()
    unsupported = [
        UnsupportedOperator(note.text, LOWERING, f"{note.text} ({note.source})" if note.source else note.text)
        for note in collected.on_cpu
    ]
    for entry in collected.entries:
        graph = _read(entry)
        counts.update(_kind(node.op) for node in graph.nodes)
        unsupported += _find_unsupported(entry, graph)
    bad = {item.kind for item in unsupported}
    supported = sorted((name, count) for name, count in counts.items() if name not in bad)
    return OperatorAnalysis(tuple(supported), tuple(unsupported))


def write_result(analysis: OperatorAnalysis, directory: str, verbosity: int) -> str:
    """Write `result.json` to a directory, which is created if it does not exist, and return its path.

    Args:
        analysis: the result of `analyze`.
        directory: the target.
        verbosity: 2 includes the graph of each unsupported operator.

    Raises:
        NeuronToolsError: it cannot be written.
    """
    path = os.path.join(directory, RESULT)
    try:
        os.makedirs(directory, exist_ok=True)
        with open(path, "w", encoding="utf-8") as result:
            json.dump(result_json(analysis, verbosity), result, indent=4)
            result.write("\n")
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write {path}: {error.strerror}", "use another directory with --analyze-output"
        ) from error
    return path


def format_summary(analysis: OperatorAnalysis, path: str) -> tuple[str, ...]:
    """Return the summary: the share, each unsupported operator, the path of the result."""
    kinds = len({name for name, _ in analysis.supported})
    return (
        f"{analysis.percentage:.2f}% of the operators are supported ({kinds} kinds)",
        *(f"not supported at {item.failure_at}: {item.call}" for item in analysis.unsupported),
        f"The result is in {path}",
    )


def result_json(analysis: OperatorAnalysis, verbosity: int) -> dict[str, Any]:
    """Return the contents of `result.json`."""
    return {
        "torch_neuronx_version": f"neurontools {__version__}",
        "neuronx_cc_version": COMPILER_VERSION,
        "support_percentage": f"{analysis.percentage:.2f}%",
        "supported_operators": {
            space: {name: count for name, count in analysis.supported if _space(name) == space}
            for space in _spaces(name for name, _ in analysis.supported)
        },
        "unsupported_operators": {
            space: [
                _unsupported_json(item, verbosity)
                for item in analysis.unsupported
                if _space(item.kind) == space
            ]
            for space in _spaces(item.kind for item in analysis.unsupported)
        },
    }


def _unsupported_json(item: UnsupportedOperator, verbosity: int) -> dict[str, str]:
    found = {"kind": item.kind, "failureAt": item.failure_at, "call": item.call}
    return found if verbosity <= _QUIET else {**found, "opGraph": item.graph}


def _spaces(names: Iterable[str]) -> tuple[str, ...]:
    """Return the namespaces of operators, torch's own always among them."""
    return tuple(sorted({_ATEN, *map(_space, names)}))


def _space(name: str) -> str:
    return name.partition("::")[0]


def _read(entry: str) -> Graph:
    try:
        with layouts.open_entry(entry) as directory:
            return graph_from_bytes(directory.read(layouts.GRAPH))
    except OSError as error:
        raise NeuronToolsError(
            f"cannot read a graph of this run: {error.filename}: {error.strerror}", "run the analysis again"
        ) from error
    except GraphError as error:
        raise NeuronToolsError(f"{entry}: {error.message}", "run the analysis again") from error


def _find_unsupported(entry: str, graph: Graph) -> list[UnsupportedOperator]:
    flags = read_stored_flags(entry) or ()
    device = device_of(flags)
    found = [
        UnsupportedOperator(_kind(node.op), COMPILER, error.message, graph.to_text())
        for node in graph.nodes
        if (error := type_error(node, device, flags)) is not None
    ]
    failure = read_failure(entry)
    if failure is None or found:
        return found
    return [UnsupportedOperator(f"{_ATEN}::graph", COMPILER, failure.message, graph.to_text())]


def _kind(operator: str) -> str:
    namespace, _, rest = operator.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}"
