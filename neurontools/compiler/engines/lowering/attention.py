"""Fused attention: scores, softmax and mix, head by head, without scores in HBM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.lowering.calls import PartitionLayout
from neurontools.compiler.engines.lowering.families import is_backward
from neurontools.compiler.engines.lowering.matmul import factor_bytes, fastest_cycles
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.work import products

if TYPE_CHECKING:
    from neurontools.compiler.engines.lowering.calls import LoweredCall
    from neurontools.compiler.engines.lowering.context import Lowering
    from neurontools.compiler.work import MatMul


def lower_attention(low: Lowering, call: LoweredCall) -> None:
    """Lower scaled dot-product attention or its gradient."""
    found = products(call.node)
    low.read_all(call)
    tensors = [view for view in call.operands if len(view.shape) == 4]
    if len(found) < 2 or min(found[0].batch, found[0].m, found[0].k, found[0].n) == 0:
        low.step.is_known = bool(found)
        low.write_all(call)
        return
    share = _causal_share(low, call, found[0])
    layouts = (PartitionLayout.COLUMN, PartitionLayout.COLUMN, PartitionLayout.ROW)
    if is_backward(call.node.op):
        sources = tuple(low.bring(view, PartitionLayout.COLUMN) for view in tensors)
        _backward(low, call, found, sources, share)
    else:
        sources = tuple(low.bring(view, layout) for view, layout in zip(tensors, layouts, strict=False))
        _forward(low, call, (found[0], found[1]), sources, share)


def _causal_share(low: Lowering, call: LoweredCall, scores: MatMul) -> float:
    """Return the share of score tiles that a causal mask leaves."""
    if not any(arg is True for arg in (*call.node.args, *(value for _, value in call.node.kwargs))):
        return 1.0
    tiles = -(-max(scores.m, scores.n) // low.costs.partitions)
    return (tiles + 1) / (2 * tiles)


def _product(
    low: Lowering, product: MatMul, dtype: str, reads: tuple[int, ...], target: int, share: float
) -> None:
    count, cycles = fastest_cycles(low.machine, product, dtype)
    pieces = product.batch * -(-product.m // low.costs.partitions)
    elements = _score_elements(low, product, share)
    low.tensor(
        "MATMUL",
        count,
        cycles * share,
        reads,
        (target,),
        elements=elements,
        pieces=pieces,
        flops=product.flops,
    )


def _score_elements(low: Lowering, scores: MatMul, share: float) -> float:
    return scores.batch * -(-scores.m // low.costs.partitions) * scores.n * share


def _forward(
    low: Lowering, call: LoweredCall, found: tuple[MatMul, MatMul], sources: tuple[int, ...], share: float
) -> None:
    made = _attend(low, found, call.operands[0].dtype, sources, share)
    low.step.instructions[-1].writes = (made, call.results[0].slot)
    _finish(low, call)


def _attend(
    low: Lowering, found: tuple[MatMul, MatMul], dtype: str, sources: tuple[int, ...], share: float
) -> int:
    """Add scores, softmax and mix of all heads; return the value that they make."""
    scores, mixed = found
    raw, largest, weights, done, made = (low.local() for _ in range(5))
    elements = _score_elements(low, scores, share)
    pieces = scores.batch * -(-scores.m // low.costs.partitions)
    _product(low, scores, dtype, sources[:2], raw, share)
    low.emit(Engine.VECTOR, "REDUCE", elements, 1.0, (raw,), (largest,), pieces=pieces)
    low.emit(Engine.SCALAR, "ACTIVATE", elements, 1.0, (largest,), (weights,), pieces=pieces)
    low.transpose(dtype, scores.m, scores.n, batch=scores.batch, share=share)
    _product(low, mixed, dtype, (weights, *sources[2:3]), done, share)
    # The sum of a row divides what comes out, not the scores.
    out_elements = mixed.batch * -(-mixed.m // low.costs.partitions) * mixed.n
    factor = low.machine.tensor_scalar_factor("float32", from_psum=True)
    low.emit(
        Engine.VECTOR, "SCALAR", out_elements, factor, (done,), (made,), pieces=pieces, may_use_scalar=True
    )
    return made


def lower_fused_block(low: Lowering, call: LoweredCall) -> None:
    """Lower torch's fused transformer layer: its linear layers, each with a pass over what it makes, and attention."""
    found = products(call.node)
    for view in dict.fromkeys(call.operands):
        low.read(view, factor_bytes(low, view))
    source, dtype = call.operands[0] if call.operands else None, "float32"
    if source is None or len(found) < 2 or min(found[0].m, found[0].k, found[-1].n) == 0:
        low.step.is_known = False
        low.write_all(call)
        return
    dtype, current, parts = source.dtype, source.slot, low.costs.partitions
    norm = low.machine.tensor_tensor_factor(dtype, from_psum=False)
    norms = sum(len(view.shape) == 1 and view.shape[0] == found[0].k for view in call.operands) // 4
    for number, product in enumerate(found[:-2]):
        done, changed = low.local(), low.local()
        low.transpose(dtype, product.m, product.k)
        _product(low, product, dtype, (current,), done, 1.0)
        elements = -(-product.m // parts) * product.n
        low.emit(Engine.SCALAR, "ACTIVATE", elements, 1.0, (done,), (changed,))
        current = changed
        if number == 0:
            current = _attend(low, (found[-2], found[-1]), dtype, (changed,), 1.0)
    elements = -(-found[0].m // parts) * found[0].k
    for _ in range(norms):
        changed = low.local()
        low.emit(Engine.VECTOR, "BN_STATS", elements, 1.0 + 3 * norm, (current,), (changed,))
        current = changed
    low.pass_on((current,), tuple(view.slot for view in call.results), 0)
    low.write_all(call, PartitionLayout.ROW, rank=2)


def _backward(
    low: Lowering, call: LoweredCall, found: tuple[MatMul, ...], sources: tuple[int, ...], share: float
) -> None:
    dtype = call.operands[0].dtype
    scores = found[0]
    elements = _score_elements(low, scores, share)
    pieces = scores.batch * -(-scores.m // low.costs.partitions)
    raw, weights, gradient, changed = (low.local() for _ in range(4))
    pair = low.machine.tensor_tensor_factor("float32", from_psum=True)
    _product(low, scores, dtype, sources, raw, share)
    low.emit(Engine.SCALAR, "ACTIVATE", elements, 1.0, (raw,), (weights,), pieces=pieces)
    _product(low, found[1], dtype, sources, gradient, share)
    low.emit(
        Engine.VECTOR, "TENSOR_TENSOR", 2 * elements, pair, (weights, gradient), (changed,), pieces=pieces
    )
    low.transpose(dtype, scores.m, scores.n, batch=scores.batch, share=share)
    done = low.local()
    for product in found[2:]:
        _product(low, product, dtype, (changed, weights), done, share)
    outputs = sum(product.batch * -(-product.m // low.costs.partitions) * product.n for product in found[2:])
    low.evict(outputs, done, call.results[0].slot)
    low.step.instructions[-1].writes = tuple(view.slot for view in call.results)
    _finish(low, call)


def _finish(low: Lowering, call: LoweredCall) -> None:
    low.write_all(call, call.wanted or PartitionLayout.ROW, rank=2)
