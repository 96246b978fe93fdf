"""Size and times of the NEFF of a training step with 5,000 operators: compile, and load by phase."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.engine_model.training import decoder_training
from benchmarks.report import BenchmarkRow, in_short_form
from neurontools.compiler.archive import unpack_files
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.engines.cost import GraphCost
from neurontools.compiler.graph import graph_from_bytes, reads
from neurontools.compiler.neff import parse
from neurontools.compiler.neff_header import HEADER_BYTES
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla.execution import generate
from neurontools.xla.geometry import intern_layout
from neurontools.xla.graph_values import geometry_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.graph import Graph, View

_ROUNDS = in_short_form(7, 1)
_GPT = {
    "layers": in_short_form(27, 1),
    "width": 768,
    "heads": 12,
    "vocabulary": 50257,
    "batch": 4,
    "length": 128,
}


def main() -> list[BenchmarkRow]:
    """Return sizes and CPU times; a load is what a process does that finds the NEFF in the cache."""
    graph = decoder_training(**_GPT, optimizer="adamw")
    device = instance_type("trn1.2xlarge").device
    started = time.process_time()
    data = compile_graph(graph, device, ("--target=trn1",), "gpt")
    compile_s = time.process_time() - started
    count = len(graph.nodes)
    files = unpack_files(data[HEADER_BYTES:])
    layouts = _input_layouts(graph)
    phases = {
        "unpack": lambda: unpack_files(data[HEADER_BYTES:]),
        "read and check the graph": lambda: graph_from_bytes(files["graph.json"]),
        "read and check the schedule": lambda: GraphCost.from_bytes(files["cost.bin"], graph),
        "generate the executable": lambda: generate(graph, layouts),
    }
    return [
        BenchmarkRow.at_most("NEFF, an operator", len(data) / count, "bytes", 40, f"{count:,} operators"),
        BenchmarkRow.at_most("compile", compile_s, "s", 2.5),
        *(BenchmarkRow.info(name, _best_ms(phase), "ms") for name, phase in phases.items()),
        BenchmarkRow.at_most("load", _best_ms(lambda: generate(parse(data).graph, layouts)), "ms", 120),
    ]


def _input_layouts(graph: Graph) -> list[int]:
    """Return the layouts of the graph's inputs: as they are read first."""
    first: dict[int, View] = {}
    for node in graph.nodes:
        for view in reads(node):
            first.setdefault(view.slot, view)
    return [intern_layout(graph.slots[slot].nbytes, geometry_from(first[slot])) for slot in graph.inputs]


def _best_ms(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best * 1e3
