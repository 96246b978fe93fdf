"""From a graph to a program: each call goes to the lowering of its family. Elementwise operators are lowered here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.instructions import CoreProgram
from neurontools.compiler.engines.lowering.calls import (
    LoweredCall,
    PartitionLayout,
    calls_of,
    matmul_operands,
    numel,
    stream_bytes,
)
from neurontools.compiler.engines.lowering.context import Lowering
from neurontools.compiler.engines.lowering.families import OperatorFamily, is_backward, passes_of, plain_name
from neurontools.compiler.engines.lowering.matmul import (
    lower_attention,
    lower_convolution,
    lower_fused_block,
    lower_matmul,
)
from neurontools.compiler.engines.lowering.movement import (
    lower_collective,
    lower_custom,
    lower_fill,
    lower_gather,
    lower_iota,
    lower_scatter,
    lower_transfer,
)
from neurontools.compiler.engines.lowering.reductions import (
    lower_batch_norm,
    lower_norm,
    lower_pooling,
    lower_reduction,
    lower_scan,
    lower_softmax,
    lower_sort,
)
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.work import flops, touched_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from neurontools.compiler.engines.instructions import CustomWork
    from neurontools.compiler.engines.modelled_core import ModelledCore
    from neurontools.compiler.graph import Graph


_FOLDS_INTO = frozenset({OperatorFamily.ELEMENTWISE, OperatorFamily.SOFTMAX})
_FOLDING_DISTANCE = 8
_LIST = "_foreach_"


def lower_elementwise(low: Lowering, call: LoweredCall) -> None:
    """Lower a call whose result elements depend on the same elements of its operands."""
    step, machine = low.step, low.machine
    step.streams = True
    step.is_known = call.kind is not OperatorFamily.UNKNOWN
    is_list = _LIST in call.node.op or call.node.op.startswith("aten._fused_")
    for view in dict.fromkeys(call.operands):
        low.read(view, row=stream_bytes(touched_bytes(view)) if is_list else None)
    main = call.main
    if main is None:
        return
    layout = _layout(low, call)
    if is_list:
        elements = -(-sum(map(numel, call.results or call.operands)) // machine.costs.partitions)
    else:
        elements = low.elements_of(call, main, layout)
    is_folded = _passes(low, call, elements)
    low.write_alike(call, layout)
    if is_folded:
        low.folded.update(view.slot for view in call.results)


def _layout(low: Lowering, call: LoweredCall) -> PartitionLayout | None:
    for view in call.operands:
        if len(view.shape) >= 2:
            found = low.layout_of(view)
            if found is not None and numel(view) == max(map(numel, call.results), default=0):
                return found
    return None


def _passes(low: Lowering, call: LoweredCall, elements: int) -> bool:
    """Add the instructions of a call; return whether it is left to its consumer, which applies a number on the way."""
    passes, machine = passes_of(call.node.op), low.machine
    sources = tuple(view.slot for view in call.operands)
    targets = tuple(view.slot for view in call.results)
    dtype = call.operands[0].dtype if call.operands else "float32"
    from_psum = any(slot in low.in_psum for slot in sources)
    work = flops(call.node)
    pairs, singles = passes.pairs, passes.singles
    tensors = {view.slot for view in call.operands if numel(view) > 1}
    if pairs == 1 and passes.activations == 0 and (len(tensors) < 2 or _adds_a_column(low, call)):
        pairs, singles = 0.0, 1.0
    is_foldable = (pairs, singles, passes.activations) == (0, 1, 0) and call.next_kind in _FOLDS_INTO
    if (
        is_foldable
        and call.distance <= _FOLDING_DISTANCE
        and not from_psum
        and not low.folded.intersection(sources)
    ):
        singles = 0.0
    low.in_psum.difference_update(sources)
    if elements == 0:
        return False
    if singles + pairs + passes.activations == 0:
        low.pass_on(sources, targets, work)
        return True
    current = sources
    if pairs:
        factor = pairs * machine.tensor_tensor_factor(dtype, from_psum=from_psum)
        target = targets if not singles and not passes.activations else (low.local(),)
        low.emit(Engine.VECTOR, "TENSOR_TENSOR", elements, factor, current, target, flops=work)
        current, work = target, 0
    if singles:
        factor = singles * machine.tensor_scalar_factor(dtype, from_psum=from_psum)
        target = targets if not passes.activations else (low.local(),)
        low.emit(
            Engine.VECTOR,
            "SCALAR",
            elements,
            factor,
            current,
            target,
            flops=work,
            may_use_scalar=singles == 1,
        )
        current, work = target, 0
    if passes.activations:
        factor = passes.activations * machine.activation_factor(dtype)
        low.emit(Engine.SCALAR, "ACTIVATE", elements, factor, current, targets, flops=work)
    return False


def _adds_a_column(low: Lowering, call: LoweredCall) -> bool:
    """Return whether the second tensor is one number a partition: a bias where channels lie across the partitions."""
    largest = max(map(numel, call.operands), default=0)
    small = [view for view in call.operands if numel(view) < largest]
    if not small or len(call.operands) != 2:
        return False
    layout = _layout(low, call)
    return layout is PartitionLayout.COLUMN and small[0].shape[-1:] == (numel(small[0]),)


_LOWERINGS: dict[OperatorFamily, Callable[[Lowering, LoweredCall], None]] = {
    OperatorFamily.MATMUL: lower_matmul,
    OperatorFamily.CONVOLUTION: lower_convolution,
    OperatorFamily.ATTENTION: lower_attention,
    OperatorFamily.ELEMENTWISE: lower_elementwise,
    OperatorFamily.UNKNOWN: lower_elementwise,
    OperatorFamily.FUSED_BLOCK: lower_fused_block,
    OperatorFamily.SOFTMAX: lower_softmax,
    OperatorFamily.NORM: lower_norm,
    OperatorFamily.BATCH_NORM: lower_batch_norm,
    OperatorFamily.REDUCTION: lower_reduction,
    OperatorFamily.POOLING: lower_pooling,
    OperatorFamily.SCAN: lower_scan,
    OperatorFamily.SORT: lower_sort,
    OperatorFamily.GATHER: lower_gather,
    OperatorFamily.SCATTER: lower_scatter,
    OperatorFamily.TRANSFER: lower_transfer,
    OperatorFamily.FILL: lower_fill,
    OperatorFamily.IOTA: lower_iota,
    OperatorFamily.COLLECTIVE: lower_collective,
}


def lower(graph: Graph, machine: ModelledCore, custom: Mapping[int, CustomWork]) -> CoreProgram:
    """Return the program of a graph.

    Args:
        graph: what to run.
        machine: the core that runs it.
        custom: what calls of custom operators do, by position.
    """
    calls = calls_of(graph)
    inputs = frozenset(graph.inputs)
    kept = inputs | frozenset(graph.outputs)
    low = Lowering(machine, inputs, _constants(calls, inputs), _factors_only(calls) - kept)
    steps = []
    for call in calls:
        step = low.start(call)
        if call.kind is OperatorFamily.CUSTOM:
            lower_custom(low, call, custom.get(call.position))
        else:
            _LOWERINGS[call.kind](low, call)
        steps.append(step)
    return CoreProgram(steps, inputs, frozenset(graph.outputs))


_FACTORS = frozenset({OperatorFamily.MATMUL, OperatorFamily.CONVOLUTION, OperatorFamily.ATTENTION})


def _factors_only(calls: Sequence[LoweredCall]) -> frozenset[int]:
    """Return the values that only products read: they are stored in the type that products run in."""
    read_by_products: set[int] = set()
    read_by_others: set[int] = set()
    for call in calls:
        target = read_by_products if call.kind in _FACTORS else read_by_others
        changed = {view.slot for view in call.results}  # in place, on the way to its last form
        target.update(view.slot for view in call.operands if view.slot not in changed)
    return frozenset(read_by_products - read_by_others)


def _constants(calls: Sequence[LoweredCall], inputs: frozenset[int]) -> frozenset[int]:
    """Return the weights: inputs that only products read and the graph never writes; none if it computes gradients."""
    if any(is_backward(call.node.op) or plain_name(call.node.op) in _OPTIMIZERS for call in calls):
        return frozenset()
    factors: set[int] = set()
    others: set[int] = set()
    for call in calls:
        weights = set(_weights(call))
        factors |= weights
        others.update(view.slot for view in call.results)
        if call.kind not in _WITH_WEIGHTS:
            others.update(view.slot for view in call.operands)
    return (inputs & factors) - others


_OPTIMIZERS = frozenset({"_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"})
_WITH_WEIGHTS = frozenset({OperatorFamily.MATMUL, OperatorFamily.CONVOLUTION, OperatorFamily.FUSED_BLOCK})


def _weights(call: LoweredCall) -> Iterator[int]:
    """Yield the buffers that a product has as its second factor."""
    match call.kind:
        case OperatorFamily.MATMUL:
            right = matmul_operands(call)[1]
            if right is not None:
                yield right.slot
        case OperatorFamily.CONVOLUTION:
            yield from (view.slot for view in call.operands[1:2])
        case OperatorFamily.FUSED_BLOCK:
            yield from (view.slot for view in call.operands if len(view.shape) == 2)
