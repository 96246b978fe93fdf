"""Programs with a fault and without, as graphs that the compiler made into NEFFs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as with_fields

from benchmarks.engine_model.builder import GraphBuilder
from benchmarks.engine_model.layers import activate, linear
from benchmarks.engine_model.training import decoder_training
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.neff import parse
from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.advice.findings import Advice, Silent
from neurontools.profiler.advice.subject import ProfiledProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neurontools.compiler.graph import Graph
    from neurontools.profiler.advice.findings import Finding

TRN1 = instance_type("trn1.2xlarge").device
_GPT = {"layers": 2, "width": 256, "heads": 4, "vocabulary": 512, "batch": 4, "length": 256}


def gpt(**changes: Any) -> Graph:
    """Forward and backward of a small GPT, in bfloat16 with fused attention: nothing that a rule about graphs would change."""
    return decoder_training(**{**_GPT, "dtype": "bfloat16", **changes})


def perceptron(rows: int, width: int, layers: int = 6, dtype: str = "bfloat16") -> Graph:
    """Inference of linear layers and activations."""
    b = GraphBuilder(dtype)
    x = b.input(rows, width)
    for _ in range(layers):
        x = activate(b, linear(b, x, width), "gelu")
    return b.finish(x)


def neff_bytes(graph: Graph, *flags: str, name: str = "gpt") -> bytes:
    return compile_graph(graph, TRN1, ("--target=trn1", *flags), name)


def program(graph: Graph, *flags: str, per_step: float = 1.0) -> ProfiledProgram:
    return ProfiledProgram(parse(neff_bytes(graph, *flags)), "gpt", per_step)


def located(graph: Graph, lines: Mapping[str, str]) -> Graph:
    """Return a graph whose calls have source lines, by parts of their names; a line of their own for backward calls."""

    def source(op: str) -> str:
        if "backward" in op:
            return "/home/ada/train.py:90"
        return next((line for part, line in lines.items() if part in op), "/home/ada/model.py:7")

    nodes = tuple(with_fields(node, source=source(node.op)) for node in graph.nodes)
    return graph.with_calls(graph.slots, nodes)


def advice_of(rule: Callable[[ProfiledProgram], Iterator[Finding]], subject: ProfiledProgram) -> Advice:
    """Return the one advice of a rule."""
    (found,) = (finding for finding in rule(subject) if isinstance(finding, Advice))
    return found


def reason_of(rule: Callable[[ProfiledProgram], Iterator[Finding]], subject: ProfiledProgram) -> str:
    """Return why a rule has no advice."""
    (found,) = rule(subject)
    assert isinstance(found, Silent)
    return found.reason
