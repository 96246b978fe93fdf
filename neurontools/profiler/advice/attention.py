"""Attention that is written out as products and a softmax, where one kernel keeps the scores on the chip."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.compiler.attention_forms import fuse_attention
from neurontools.compiler.engines.lowering.families import family
from neurontools.compiler.engines.placement import is_attention
from neurontools.compiler.graph import reads
from neurontools.compiler.graph_nodes import BACKWARD
from neurontools.compiler.resizing import ChangeError
from neurontools.profiler.advice.findings import Advice, Silent
from neurontools.profiler.advice.subject import short_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.compiler.graph import Node
    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledProgram

ATTENTION = "attention"
_SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
_MASKS = frozenset({"masked_fill", "where", "add"})
_AFTER_SOFTMAX = 4  # dropout, the copy of values, the product, the copy of its result
_DROPOUTS = frozenset({"bernoulli", "native_dropout"})


def attention(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield attention that is written out, if a fused call is faster."""
    nodes = program.graph.nodes
    try:
        fused = fuse_attention(program.graph)
    except ChangeError:
        has_fused = any(is_attention(node.op) for node in nodes)
        yield Silent(ATTENTION, "attention is fused already" if has_fused else "no attention in this graph")
        return
    kept = {id(node) for node in fused.nodes}
    removed = [position for position, node in enumerate(nodes) if id(node) not in kept]
    softmaxes = [position for position in removed if family(nodes[position].op) in _SOFTMAX]
    is_causal = any(_hides_positions(nodes[position]) for position in removed)
    trial = program.trial(lambda: fuse_attention(program.graph, is_causal=True) if is_causal else fused)
    if trial.gain is None or not trial.is_worth:
        place = short_source(nodes[softmaxes[0]].source)
        yield Silent(ATTENTION, f"written out{' at ' + place if place else ''}, but fused: {trial.words}")
        return
    last = max(softmaxes) + _AFTER_SOFTMAX
    # The copy of the result may be at a later line, which stays.
    forward = [
        position
        for position in removed
        if position <= last
        and not nodes[position].layer.endswith(BACKWARD)
        and family(nodes[position].op) != "clone"
    ]
    yield Advice(
        ATTENTION,
        "Use scaled_dot_product_attention instead of writing attention out",
        f"replace {_lines([nodes[position].source for position in forward])} by"
        f" {_call({family(nodes[position].op) for position in removed}, is_causal=is_causal)}",
        trial.gain,
        f"engine model, this graph with one{' causal' if is_causal else ''} kernel for each attention and one for its"
        f" gradient: {trial.words}",
        tuple(
            replace(line, text="product, softmax and product", share=program.share(removed))
            for line in program.lines(softmaxes)
        ),
    )


def _hides_positions(node: Node) -> bool:
    """Return whether a call applies a mask of positions by positions, the same for all samples and heads."""
    return family(node.op) in _MASKS and any(
        len(view.shape) > 1
        and view.shape[-1] == view.shape[-2] > 1
        and all(size == 1 or stride == 0 for size, stride in zip(view.shape[:-2], view.strides, strict=False))
        for view in reads(node)
    )


def _call(names: set[str], *, is_causal: bool) -> str:
    """Return the call to write."""
    dropout = ", dropout_p=..." if names & _DROPOUTS else ""
    call = f"torch.nn.functional.scaled_dot_product_attention(q, k, v{dropout}"
    if is_causal:
        return f"{call}, is_causal=True), if the mask hides later positions, else with attn_mask=mask"
    return f"{call}, attn_mask=mask)" if names & _MASKS else f"{call})"


def _lines(sources: Sequence[str]) -> str:
    """Return the lines of one file that sources name, as words: `model.py, lines 14 to 17,`."""
    by_file: dict[str, set[int]] = {}
    for source in sources:
        if match := re.fullmatch(r"(.*):(\d+)", source):
            by_file.setdefault(short_source(match[1]), set()).add(int(match[2]))
    if not by_file:
        return "product, softmax and product"
    file, lines = max(by_file.items(), key=lambda pair: len(pair[1]))
    first, last = min(lines), max(lines)
    return f"{file}, line {first}," if first == last else f"{file}, lines {first} to {last},"
