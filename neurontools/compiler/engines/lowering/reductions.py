"""Softmax, norms, reductions, pooling, scans and sorts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neurontools.compiler.engines.lowering.calls import PartitionLayout, numel
from neurontools.compiler.engines.lowering.families import OperatorFamily, is_backward, plain_name
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.work import flops

if TYPE_CHECKING:
    from neurontools.compiler.engines.lowering.calls import LoweredCall
    from neurontools.compiler.engines.lowering.context import Lowering
    from neurontools.compiler.graph import View


def _prepare(
    low: Lowering, call: LoweredCall, layout: PartitionLayout | None
) -> tuple[View, int, int] | None:
    """Note the operands of a row-wise call; return its largest tensor, its elements a partition and its row tiles."""
    low.read_all(call)
    main = call.main
    if main is None or numel(main) == 0:
        low.write_all(call)
        return None
    if layout is PartitionLayout.ROW and len(main.shape) >= 2:
        rows = numel(main) // main.shape[-1]
        tiles = -(-rows // low.costs.partitions)
        elements = low.elements_of(call, main, PartitionLayout.ROW)
        return main, elements, max(tiles, elements // max(1, main.shape[-1]))
    return main, low.partition_elements(main, layout), 1


def _finish(low: Lowering, call: LoweredCall, layout: PartitionLayout | None) -> None:
    low.in_psum.difference_update(view.slot for view in call.operands)
    low.write_alike(call, layout)


def lower_softmax(low: Lowering, call: LoweredCall) -> None:
    """Lower softmax and its logarithm along a row: maximum, exponential with its sum, division."""
    low.step.streams = True
    found = _prepare(low, call, PartitionLayout.ROW)
    if found is None:
        return
    main, elements, pieces = found
    machine, dtype = low.machine, main.dtype
    sources, targets = _slots(call)
    from_psum = bool(low.in_psum.intersection(sources))
    if is_backward(call.node.op):
        middle = low.local()
        pair = machine.tensor_tensor_factor(dtype, from_psum=False)
        low.emit(
            Engine.VECTOR,
            "TENSOR_TENSOR",
            elements,
            pair,
            sources,
            (middle,),
            pieces=pieces,
            flops=flops(call.node),
        )
        low.emit(Engine.VECTOR, "TENSOR_TENSOR", elements, pair, (middle,), targets, pieces=pieces)
        _finish(low, call, PartitionLayout.ROW)
        return
    largest, powers = low.local(), low.local()
    reduce = 1.0 if from_psum else machine.reduce_factor(dtype)
    single = machine.tensor_scalar_factor(dtype, from_psum=False)
    low.emit(Engine.VECTOR, "REDUCE", elements, reduce, sources, (largest,), pieces=pieces)
    low.emit(
        Engine.SCALAR,
        "ACTIVATE",
        elements,
        machine.activation_factor(dtype),
        (largest,),
        (powers,),
        pieces=pieces,
        flops=flops(call.node),
        fixed_cycles=low.costs.access_cycles + low.costs.activation_reduce_cycles,
    )
    low.emit(
        Engine.VECTOR, "SCALAR", elements, single, (powers,), targets, pieces=pieces, may_use_scalar=True
    )
    _finish(low, call, PartitionLayout.ROW)


def lower_norm(low: Lowering, call: LoweredCall) -> None:
    """Lower layer, group and RMS norms: statistics of a row, then scale and shift."""
    low.step.streams = True
    found = _prepare(low, call, PartitionLayout.ROW)
    if found is None:
        return
    main, elements, pieces = found
    machine, dtype, costs = low.machine, main.dtype, low.costs
    sources, targets = _slots(call)
    pair = machine.tensor_tensor_factor(dtype, from_psum=False)
    if is_backward(call.node.op):
        # dy * gamma, its sum, dy * x, its sum, and the combination of both; sums over rows are products with ones.
        middle = low.local()
        low.emit(
            Engine.VECTOR,
            "TENSOR_TENSOR",
            elements,
            4 * pair,
            sources,
            (middle,),
            pieces=pieces,
            flops=flops(call.node),
        )
        low.emit(Engine.SCALAR, "ACTIVATE", elements, 2.0, (middle,), targets, pieces=pieces)
        sum_rows(low, main, sources, low.local(), times=2)
        _finish(low, call, PartitionLayout.ROW)
        return
    statistics, scaled = low.local(), low.local()
    width = main.shape[-1] if main.shape else 1
    chunks = -(-width // costs.bn_stats_columns)
    extra = pieces * (chunks * costs.access_cycles + costs.bn_aggr * 3 + costs.shortest_cycles)
    weights = [view for view in call.operands[1:] if numel(view) == width]
    low.emit(
        Engine.VECTOR,
        "BN_STATS",
        elements + extra,
        1.0,
        sources,
        (statistics,),
        pieces=pieces,
        flops=flops(call.node),
    )
    low.emit(
        Engine.SCALAR,
        "ACTIVATE",
        elements,
        machine.activation_factor(dtype),
        (statistics,),
        (scaled,) if weights else targets,
        pieces=pieces,
    )
    if weights:
        low.emit(
            Engine.VECTOR, "TENSOR_TENSOR", elements, len(weights) * pair, (scaled,), targets, pieces=pieces
        )
    _finish(low, call, PartitionLayout.ROW)


def lower_batch_norm(low: Lowering, call: LoweredCall) -> None:
    """Lower batch norm; in evaluation it is folded into the weights of the convolution before it."""
    low.step.streams = True
    layout = PartitionLayout.CHANNEL if call.main is not None and len(call.main.shape) >= 3 else None
    follows_convolution = any(view.slot in low.in_psum for view in call.operands[:1])
    is_folded = follows_convolution and not is_backward(call.node.op) and not _trains(call)
    found = _prepare(low, call, layout)
    if found is None:
        return
    main, elements, _ = found
    machine, costs = low.machine, low.costs
    sources, targets = _slots(call)
    work = flops(call.node)
    if not is_backward(call.node.op) and not _trains(call):
        # Scale and shift are part of the convolution's weights; they are not loaded for themselves.
        sources = sources[:1]
        low.step.reads = [operand for operand in low.step.reads if operand.buffer in sources]
    if is_backward(call.node.op):
        pair = machine.tensor_tensor_factor(main.dtype, from_psum=False)
        middle = low.local()
        low.emit(Engine.VECTOR, "TENSOR_TENSOR", elements, 3 * pair, sources, (middle,), pieces=1, flops=work)
        low.emit(Engine.SCALAR, "ACTIVATE", elements, 1.0, (middle,), targets)
    elif _trains(call):
        statistics = low.local()
        extra = -(-elements // costs.bn_stats_columns) * costs.access_cycles
        low.emit(
            Engine.VECTOR, "BN_STATS", elements + extra, 1.0, sources, (statistics,), pieces=1, flops=work
        )
        low.emit(Engine.SCALAR, "ACTIVATE", elements, 1.0, (statistics,), targets)
    elif is_folded and call.next_kind is OperatorFamily.ELEMENTWISE and call.distance <= 2:
        # The next call reads PSUM itself.
        low.pass_on(sources, targets, work)
        _finish(low, call, layout)
        low.in_psum.add(main.slot if not call.results else call.results[0].slot)
        return
    else:
        low.emit(Engine.SCALAR, "ACTIVATE", elements, 1.0, sources, targets, flops=work)
    _finish(low, call, layout)


def _trains(call: LoweredCall) -> bool:
    if "no_training" in call.node.op:
        return False
    flags = [arg for arg in call.node.args if isinstance(arg, bool)]
    return bool(flags and flags[0]) or "with_update" in call.node.op


def lower_reduction(low: Lowering, call: LoweredCall) -> None:
    """Lower sums, means, extremes and losses; over rows they are products with ones on the Tensor engine."""
    low.read_all(call)
    main = max(call.operands, key=numel, default=None)
    if main is None or numel(main) == 0:
        low.write_all(call)
        return
    low.step.streams = True
    sources, targets = _slots(call)
    produced = sum(numel(view) for view in call.results)
    layout = low.layout_of(main) if len(main.shape) >= 2 else None
    dims = reduced_dims(call, main)
    target = targets[0] if targets else low.local()
    last = len(main.shape) - 1
    if (
        layout in {None, PartitionLayout.ROW}
        and len(main.shape) >= 2
        and dims
        and last not in dims
        and produced > 1
    ):
        sum_rows(low, main, sources, target)
        low.step.instructions[-1].flops = 0
        low.emit(
            Engine.VECTOR,
            "COPY",
            -(-produced // low.costs.partitions),
            1.0,
            (target,),
            targets,
            flops=flops(call.node),
        )
    else:
        elements = low.partition_elements(main, layout)
        passes = {
            "var": 2,
            "std": 2,
            "var_mean": 2,
            "mse_loss": 3,
            "linalg_vector_norm": 2,
            "argmax": 2,
            "argmin": 2,
        }
        factor = passes.get(plain_name(call.node.op), 1) * low.machine.reduce_factor(main.dtype)
        rows = numel(main) // main.shape[-1] if main.shape else 1
        pieces = -(-rows // low.costs.partitions) if produced > 1 else 1
        low.emit(
            Engine.VECTOR, "REDUCE", elements, factor, sources, targets, pieces=pieces, flops=flops(call.node)
        )
    low.in_psum.difference_update(sources)
    low.write_all(call)


def sum_rows(low: Lowering, main: View, sources: tuple[int, ...], target: int, times: int = 1) -> None:
    """Sum a matrix over its rows, which lie across the partitions: a product with a vector of ones."""
    costs = low.costs
    columns = main.shape[-1] if main.shape else 1
    tiles = -(-(numel(main) // max(1, columns)) // costs.partitions)
    parts = -(-columns // costs.matmul_moving_columns)
    cycles = tiles * (columns * low.machine.matmul_passes(main.dtype) + parts * costs.matmul_init_cycles)
    low.tensor(
        "MATMUL", tiles * parts * times, cycles * times, sources, (target,), elements=columns, pieces=tiles
    )


def reduced_dims(call: LoweredCall, main: View) -> frozenset[int]:
    """Return the dimensions that a reduction removes, empty for all of them."""
    for arg in call.node.args[1:]:
        dims = arg if isinstance(arg, tuple) else (arg,) if type(arg) is int else None
        if dims is not None:
            rank = max(1, len(main.shape))
            return frozenset(dim % rank for dim in dims if type(dim) is int and -rank <= dim < rank)
    return frozenset()


def lower_pooling(low: Lowering, call: LoweredCall) -> None:
    """Lower pooling over windows of images."""
    low.read_all(call)
    sizes = [numel(view) for view in (*call.results, *call.operands)]
    if not call.operands or min(sizes) == 0:
        low.write_all(call)
        return
    main = call.main
    assert main is not None
    window = 1
    for arg in call.node.args[1:2]:
        if isinstance(arg, tuple) and all(type(size) is int for size in arg):
            window = max(1, math.prod(size for size in arg if isinstance(size, int)))
    produced = max(call.results, key=numel, default=main)
    smaller = min((produced, *call.operands[:1]), key=numel)
    layout = PartitionLayout.CHANNEL if len(main.shape) >= 4 else None
    adaptive = "adaptive" in call.node.op
    elements = low.partition_elements(main if adaptive else smaller, layout) * (1 if adaptive else window)
    sources, targets = _slots(call)
    low.emit(Engine.VECTOR, "REDUCE", elements, 1.0, sources, targets, flops=flops(call.node))
    low.in_psum.difference_update(sources)
    low.write_all(call, layout, rank=4)


def lower_scan(low: Lowering, call: LoweredCall) -> None:
    """Lower cumulative sums and products: one element after the other along a row."""
    found = _prepare(low, call, PartitionLayout.ROW)
    if found is None:
        return
    _, elements, pieces = found
    sources, targets = _slots(call)
    low.emit(
        Engine.VECTOR,
        "TENSOR_TENSOR_SCAN",
        elements,
        2.0,
        sources,
        targets,
        pieces=pieces,
        flops=flops(call.node),
    )
    _finish(low, call, PartitionLayout.ROW)


def lower_sort(low: Lowering, call: LoweredCall) -> None:
    """Lower sorts and searches: eight largest at a time on Vector for top-k, GpSimd for whole orders."""
    found = _prepare(low, call, PartitionLayout.ROW)
    if found is None:
        return
    main, elements, pieces = found
    sources, targets = _slots(call)
    wanted = next((arg for arg in call.node.args[1:2] if type(arg) is int), 0)
    if plain_name(call.node.op) == "topk" and wanted > 0:
        rounds = -(-wanted // 8)
        low.emit(
            Engine.VECTOR,
            "MAX8",
            elements,
            3.0 * rounds,
            sources,
            targets,
            pieces=pieces,
            flops=flops(call.node),
        )
    else:
        length = max(2, main.shape[-1] if main.shape else 2)
        depth = math.ceil(math.log2(length))
        factor = low.costs.gpsimd_slowdown * depth * (depth + 1) / 2
        opcode = (
            "NONZERO_WITH_COUNT"
            if plain_name(call.node.op) in {"nonzero", "argwhere", "nonzero_static"}
            else "SORT"
        )
        if opcode == "NONZERO_WITH_COUNT":
            factor = low.costs.gpsimd_slowdown
        low.emit(
            Engine.GPSIMD,
            opcode,
            elements,
            factor,
            sources,
            targets,
            pieces=pieces,
            flops=flops(call.node),
            fixed_cycles=low.costs.gpsimd_fixed_cycles,
        )
    _finish(low, call, PartitionLayout.ROW)


def _slots(call: LoweredCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(view.slot for view in call.operands), tuple(view.slot for view in call.results)
