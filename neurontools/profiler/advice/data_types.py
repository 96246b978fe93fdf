"""Matrix products in float32, which take four times as long as in bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.units import format_ns
from neurontools.compiler.options import names_flag
from neurontools.compiler.what_if import Change, apply_change
from neurontools.compiler.work import products, written
from neurontools.profiler.advice.findings import Advice, Silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledProgram

DTYPE = "dtype"
_CAST_FLAGS = "--auto-cast=matmult", "--auto-cast-type=bf16"
_CAST = f'start the program with NEURON_CC_FLAGS="{" ".join(_CAST_FLAGS)}"'
_WHOLE = "write model.to(torch.bfloat16) and give it bfloat16 data"


def data_types(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield bfloat16 for a graph whose products run in float32."""
    nodes = program.graph.nodes
    slow = [
        position
        for position, node in enumerate(nodes)
        if products(node) and written(node)[0].dtype == "float32"
    ]
    if not slow:
        yield Silent(DTYPE, "no matrix product in float32")
        return
    if names_flag(program.neff.flags, "--auto-cast"):
        yield Silent(DTYPE, "products are written in float32, but --auto-cast decides what the device uses")
        return
    cast = program.trial(flags=_CAST_FLAGS)
    whole = program.trial(lambda: apply_change(program.graph, Change(dtype="bf16")))
    # Weights in bfloat16 lose small updates, so for training they are only the second choice.
    first, words, how = cast, _CAST, "products in bfloat16, weights and the rest in float32"
    if not program.trains and whole.ns > cast.ns:
        first, words, how = whole, _WHOLE, "all tensors in bfloat16"
    if first.gain is None or not first.is_worth:
        yield Silent(DTYPE, f"float32 products, but in bfloat16: {first.words}")
        return
    choice = f"; or {_WHOLE}: -{format_ns(whole.ns)}" if whole.ns > first.ns else ""
    yield Advice(
        DTYPE,
        "Run matrix products in bfloat16 instead of float32",
        f"{words} ({how}){choice}; compare the loss before you rely on it",
        first.gain,
        f"engine model, this graph with {how}: {first.words}",
        program.lines(slow, "float32 product"),
    )
