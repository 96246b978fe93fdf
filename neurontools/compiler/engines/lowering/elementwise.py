"""Elementwise operators: their passes on Vector and Scalar, chains that stay on a tile, folded scalars, lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.lowering.calls import PartitionLayout, numel, stream_bytes
from neurontools.compiler.engines.lowering.families import OperatorFamily, passes_of
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.work import flops, touched_bytes

if TYPE_CHECKING:
    from neurontools.compiler.engines.lowering.calls import LoweredCall
    from neurontools.compiler.engines.lowering.context import Lowering

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
