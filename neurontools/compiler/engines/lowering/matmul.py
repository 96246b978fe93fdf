"""Products on the Tensor engine: matrix products, convolutions, and fused attention without its scores in HBM."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neurontools.compiler.engines import dma
from neurontools.compiler.engines.instructions import STREAM_PIECES
from neurontools.compiler.engines.lowering.calls import (
    LoweredCall,
    PartitionLayout,
    contraction_layout,
    is_dense,
    matmul_operands,
    row_bytes,
)
from neurontools.compiler.engines.lowering.families import OperatorFamily, is_backward
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.graph import View
from neurontools.compiler.work import MatMul, item_bytes, products, touched_bytes

if TYPE_CHECKING:
    from neurontools.compiler.engines.lowering.context import Lowering
    from neurontools.compiler.engines.modelled_core import ModelledCore


_FUSES = frozenset(
    {
        OperatorFamily.ELEMENTWISE,
        OperatorFamily.UNKNOWN,
        OperatorFamily.SOFTMAX,
        OperatorFamily.NORM,
        OperatorFamily.BATCH_NORM,
    }
)
_FUSING_DISTANCE = 3


def tile_cycles(
    machine: ModelledCore, product: MatMul, dtype: str, *, weights_move: bool
) -> tuple[int, float]:
    """Return the number of matmul instructions of a product and their cycles together.

    Args:
        machine: the core.
        product: m x k times k x n.
        dtype: the type of its operands, before auto-cast.
        weights_move: whether the k x n operand moves through the array, with the result's rows across the
            partitions; else the m x k operand does.
    """
    stationary, moving = (product.m, product.n) if weights_move else (product.n, product.m)
    tiles_k = -(-product.k // machine.costs.partitions)
    return _swept_cycles(machine, _rounds(machine, product) * tiles_k, stationary, moving, dtype)


def fastest_cycles(machine: ModelledCore, product: MatMul, dtype: str) -> tuple[int, float]:
    """Return the `tile_cycles` of a product in the orientation that takes less time."""
    choices = (tile_cycles(machine, product, dtype, weights_move=move) for move in (True, False))
    return min(choices, key=lambda choice: choice[1])


def _swept_cycles(
    machine: ModelledCore, rounds: int, stationary: int, moving: int, dtype: str
) -> tuple[int, float]:
    """Return instructions and cycles of `rounds` products of a tile's depth, each of a stationary and a moving matrix."""
    costs = machine.costs
    tiles_s = -(-stationary // costs.matmul_stationary_columns)
    tiles_m = -(-moving // costs.matmul_moving_columns)
    columns = max(moving, tiles_m * min(costs.matmul_shortest_columns, stationary))
    cycles = columns * machine.matmul_passes(dtype) + tiles_m * costs.matmul_init_cycles
    # One stationary matrix serves as many results as PSUM holds.
    loads = -(-tiles_m // costs.psum_banks) * costs.load_stationary_cycles
    return rounds * tiles_s * tiles_m, rounds * tiles_s * (cycles + loads)


def _rounds(machine: ModelledCore, product: MatMul) -> int:
    """Return how often the array is used for the products of a batch."""
    return -(-product.batch // _packed(machine, product.k, product.batch))


def _packed(machine: ModelledCore, depth: int, batch: int) -> int:
    """Return how many products of a batch share the array by its row tiles."""
    if batch < 2 or depth < 1:
        return 1
    fitting = machine.costs.partitions // depth
    return max(1, min(fitting, machine.costs.row_tiles, batch))


def lower_matmul(low: Lowering, call: LoweredCall) -> None:
    """Lower a matrix product of two tensors, with an addend for `addmm` and its like."""
    found = products(call.node)
    left, right = matmul_operands(call)
    if not found or left is None or right is None or not call.results:
        low.step.is_known = False
        low.read_all(call)
        low.write_all(call)
        return
    product = found[0]
    may_turn = low.costs.hardware_dge_ns > 0 and _is_bound_by_tensor(low, product, left, right)
    a = low.bring(left, contraction_layout(left, is_left=True), may_turn=may_turn)
    b = low.bring(right, contraction_layout(right, is_left=False), may_turn=may_turn)
    read_factors(low, product, left, right)
    addends = [view for view in call.operands if view is not left and view is not right]
    for view in addends:
        low.read(view)
    result = call.results[0]
    emit_product(low, product, (a, b), result, call, addend=addends[0].slot if addends else None)


def _is_bound_by_tensor(low: Lowering, product: MatMul, left: View, right: View) -> bool:
    """Return whether computing a product takes long enough to hide loads that transpose its factors.

    It begins when such a factor has arrived whole, so loading counts before the product and during it.
    """
    _, cycles = fastest_cycles(low.machine, product, left.dtype)
    computing_ns = cycles * low.machine.cycle_ns[Engine.TENSOR]
    share = low.costs.dma_transpose_share
    loading_ns = sum(
        dma.transfer_ns(low.machine, low.stored_bytes(view), factor_row(low, view)) for view in (left, right)
    )
    return computing_ns * share > 2 * loading_ns


def emit_product(
    low: Lowering,
    product: MatMul,
    factors: tuple[int, int],
    result: View,
    call: LoweredCall,
    *,
    addend: int | None,
) -> None:
    """Add the instructions of a product whose factors lie right, and evict the result or leave it to the next call."""
    machine = low.machine
    dtype = call.operands[0].dtype
    if min(product.batch, product.m, product.k, product.n) == 0:
        low.write(result)
        return
    choices = {
        PartitionLayout.ROW: tile_cycles(machine, product, dtype, weights_move=True),
        PartitionLayout.COLUMN: tile_cycles(machine, product, dtype, weights_move=False),
    }
    layout = choose_layout(low, product, dtype, choices, call.wanted)
    count, cycles = choices[layout]
    done = low.local()
    parts = machine.costs.partitions
    stationary, moving = (product.m, product.n) if layout is PartitionLayout.ROW else (product.n, product.m)
    share = placed_tiles(machine, product.batch, stationary)
    elements = -(-(product.batch * -(-stationary // parts) * moving) // share)
    pieces = STREAM_PIECES
    fuses = call.next_kind in _FUSES and call.distance <= _FUSING_DISTANCE and addend is None
    target = result.slot if fuses else done
    low.tensor(
        "MATMUL", count, cycles, factors, (target,), elements=elements, pieces=pieces, flops=product.flops
    )
    low.write(result, layout)
    if layout is PartitionLayout.ROW and product.batch > 1:
        low.fill[result.slot] = share * stationary / (-(-stationary // parts) * parts)
    if fuses:
        low.in_psum.add(result.slot)
    elif addend is None:
        low.evict(elements, done, result.slot)
    else:
        # A bias across the partitions is a number of each; along them it is a second tensor, read from SBUF.
        factor = machine.tensor_tensor_factor("float32", from_psum=True)
        low.emit(
            Engine.VECTOR,
            "TENSOR_TENSOR",
            elements,
            factor,
            (done, addend),
            (result.slot,),
            may_use_scalar=layout is PartitionLayout.COLUMN,
        )


def placed_tiles(machine: ModelledCore, batch: int, rows: int) -> int:
    """Return how many results of a batch lie side by side in the partitions: as many as the array has tiles for them."""
    parts = machine.costs.partitions
    tiles = next((count for count in (4, 2) if count <= machine.costs.row_tiles and rows * count <= parts), 1)
    return max(1, min(batch, tiles))


def choose_layout(
    low: Lowering,
    product: MatMul,
    dtype: str,
    choices: dict[PartitionLayout, tuple[int, float]],
    wanted: PartitionLayout | None,
) -> PartitionLayout:
    """Return the orientation that takes least time together with the transpose that the consumer would need."""
    _, cycles, moved = low.transpose_work(dtype, product.m, product.n, product.batch)
    cycle_ns = low.machine.cycle_ns
    transposing = cycles + moved * cycle_ns[Engine.VECTOR] / cycle_ns[Engine.TENSOR]
    spent = {
        layout: cycles + (transposing if wanted not in {None, layout} else 0.0)
        for layout, (_, cycles) in choices.items()
    }
    return min(spent, key=lambda layout: (spent[layout], layout is not wanted))


def read_factors(low: Lowering, product: MatMul, left: View, right: View) -> None:
    """Note both factors; what does not fit SBUF is loaded again for each stripe of the other."""
    sizes = [factor_bytes(low, view) for view in (left, right)]
    half = low.machine.sbuf_bytes // 2
    small, large = sorted(sizes)
    stripes = -(-small // half) if product.batch == 1 and large > half else 1
    for view, size in zip((left, right), sizes, strict=True):
        times = stripes if size == large and left is not right else 1
        low.read(view, size * times, factor_row(low, view))


def factor_bytes(low: Lowering, view: View) -> int:
    """Return the bytes of a factor in HBM; weights are stored in the type that products run in."""
    if low.machine.matmul_dtype and view.dtype == "float32" and view.slot in low.constants:
        return touched_bytes(view) * low.machine.cast_bytes // 4
    return low.stored_bytes(view)


def factor_row(low: Lowering, view: View) -> float:
    """Return the bytes of a descriptor of a factor; a constant is stored with its contraction across the partitions.

    The rows of a factor may lie in any order over the partitions, so a descriptor takes as many that follow each other
    in memory as cost no more than one, up to the mean share of a partition.
    """
    is_constant = view.slot in low.constants and len(view.shape) >= 2
    row = max(1, row_bytes(view))
    if is_constant:
        cast = low.machine.matmul_dtype and view.dtype == "float32"
        row = max(1, view.shape[-1] * (low.machine.cast_bytes if cast else item_bytes(view.dtype)))
    elif not is_dense(view):
        return row
    neighbours = int(low.costs.dma_smallest_bytes) // row
    return max(row, min(factor_bytes(low, view) / low.costs.partitions, neighbours * row))


def lower_convolution(low: Lowering, call: LoweredCall) -> None:
    """Lower a convolution: a product for each offset of the kernel, with channels across the partitions."""
    found = products(call.node)
    if not found or not call.results:
        low.step.is_known = False
    tensors = [arg for arg in call.node.args if isinstance(arg, View)]
    backward = is_backward(call.node.op)
    weight = tensors[2 if backward else 1] if len(tensors) > (2 if backward else 1) else None
    for view in dict.fromkeys(call.operands):
        low.read(
            view,
            factor_bytes(low, view) if view is weight else None,
            _weight_row(low, view) if view is weight else None,
        )
    offsets = math.prod(weight.shape[2:]) if weight is not None else 1
    done = low.local()
    sources = tuple(view.slot for view in call.operands)
    elements = 0
    for product in found:
        if min(product.m, product.k, product.n) == 0:
            continue
        dtype = call.operands[0].dtype
        if backward:
            count, cycles = fastest_cycles(low.machine, product, dtype)
        else:
            count, cycles = _convolution_cycles(low.machine, product, offsets, dtype)
        made = product.batch * -(-product.n // low.costs.partitions) * product.m
        elements += made
        pieces = STREAM_PIECES
        low.tensor(
            "MATMUL", count, cycles, sources, (done,), elements=made, pieces=pieces, flops=product.flops
        )
    fuses = call.next_kind in _FUSES and call.distance <= _FUSING_DISTANCE and len(call.results) == 1
    if not fuses and call.results:
        low.evict(elements, done, call.results[0].slot)
    elif low.step.instructions:
        low.step.instructions[-1].writes = (call.results[0].slot,)
    low.write_all(call, PartitionLayout.CHANNEL, rank=3)
    if fuses:
        low.in_psum.update(view.slot for view in call.results)


def _weight_row(low: Lowering, view: View) -> int:
    """Return the bytes of a descriptor of a kernel: a channel of inputs with all offsets and outputs."""
    channels = max(1, view.shape[1] if len(view.shape) > 1 else 1)
    return max(1, factor_bytes(low, view) // channels)


def _convolution_cycles(
    machine: ModelledCore, product: MatMul, offsets: int, dtype: str
) -> tuple[int, float]:
    costs = machine.costs
    channels = max(1, product.k // max(1, offsets))
    # Offsets share the rows of the array as row tiles, without moving the image in SBUF.
    packed = min(costs.row_tiles, max(1, costs.partitions // channels))
    tiles_k = -(-channels // costs.partitions) * -(-offsets // packed)
    if product.k % max(1, offsets):
        tiles_k = -(-product.k // costs.partitions)
    return _swept_cycles(machine, _rounds(machine, product) * tiles_k, product.n, product.m, dtype)


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
