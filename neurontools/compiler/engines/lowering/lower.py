"""From a graph to a program: each call goes to the lowering of its family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.instructions import CoreProgram
from neurontools.compiler.engines.lowering.attention import lower_attention, lower_fused_block
from neurontools.compiler.engines.lowering.calls import calls_of, matmul_operands
from neurontools.compiler.engines.lowering.context import Lowering
from neurontools.compiler.engines.lowering.elementwise import lower_elementwise
from neurontools.compiler.engines.lowering.families import OperatorFamily, is_backward, plain_name
from neurontools.compiler.engines.lowering.matmul import lower_convolution, lower_matmul
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from neurontools.compiler.engines.kernel_program import CustomWork
    from neurontools.compiler.engines.lowering.calls import LoweredCall
    from neurontools.compiler.engines.modelled_core import ModelledCore
    from neurontools.compiler.graph import Graph

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
