"""The work of an operator call: floating-point operations, elements, and bytes of memory, from the views in the graph.

A multiply-accumulate counts as two operations; other calls have a count per element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.compiler.engines.lowering.families import family, plain_name
from neurontools.compiler.engines.placement import is_attention, split_name
from neurontools.compiler.graph import View, reads, views

if TYPE_CHECKING:
    from neurontools.compiler.graph import Node

PARTITIONS = 128

_TYPES_BY_BYTES = {
    1: "bool int8 uint8",
    2: "float16 bfloat16 int16 uint16",
    8: "float64 int64 uint64 complex64",
    16: "complex128",
}

# Operators that write arguments which are not the first one, by position (their schemas name these).
_WRITTEN_POSITIONS = {
    "_fused_adam": (0, 2, 3, 4),
    "_fused_adamw": (0, 2, 3, 4),
    "_fused_sgd": (0, 2),
    "native_batch_norm": (3, 4),
    "_native_batch_norm_legit": (3, 4),
    "_batch_norm_with_update": (3, 4),
}
# In-place operators that ignore what was there before.
_OVERWRITING = frozenset({"copy", "fill", "zero", "normal", "uniform", "bernoulli", "random", "exponential"})


@dataclass(frozen=True, slots=True)
class MatMul:
    """`batch` products of an m x k with a k x n matrix."""

    batch: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """Two operations per multiply-accumulate."""
        return 2 * self.batch * self.m * self.k * self.n


# Operations per element of what is not a plain one-operation call: passes over the data in a textbook implementation.
_NAMES_BY_COUNT = {
    2: "linalg_vector_norm",
    3: "addcmul addcdiv lerp mse_loss var var_mean std",
    4: "_softmax_backward_data _log_softmax_backward_data silu _fused_sgd",
    5: "_softmax _safe_softmax _log_softmax _fused_rms_norm",
    6: "mish binary_cross_entropy_with_logits",
    7: "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional",
    8: "gelu",
    10: "_thnn_fused_lstm_cell",
    12: "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward",
    14: "_fused_adam",
    15: "_fused_adamw",
}
_PER_ELEMENT = {name: count for count, names in _NAMES_BY_COUNT.items() for name in names.split()}


def products(node: Node) -> tuple[MatMul, ...]:
    """Return the matrix products of a call of the matmul family, backward forms included; empty for other calls."""
    name = split_name(node.op)[1]
    shapes = [view.shape for view in reads(node)]
    if is_attention(node.op):
        return _attention(shapes, backward="backward" in name)
    match family(node.op):
        case "mm" | "_int_mm" | "_scaled_mm" | "bmm" | "mv" | "dot" | "vdot" | "matmul":
            operands = shapes[:2]
        case "addmm" | "baddbmm" | "addbmm" | "addmv" | "_addmm_activation":
            operands = shapes[1:3]
        case "linear":
            operands = (
                [shapes[0], (*shapes[1][:-2], *shapes[1][:-3:-1])] if len(shapes) > 1 and shapes[1] else []
            )
        case "convolution" | "convolution_overrideable" | "_convolution" | "conv2d" | "mkldnn_convolution":
            return _convolution(node, backward="backward" in name)
        case "_grouped_mm" | "_scaled_grouped_mm":
            return _grouped(node, shapes[:2])
        case "_transformer_encoder_layer_fwd" | "_native_multi_head_attention":
            return _fused_block(node, shapes)
        case _:
            return ()
    return _matmul(operands)


def _fused_block(node: Node, shapes: list[tuple[int, ...]]) -> tuple[MatMul, ...]:
    """Return the products of torch's fused transformer layer: one for each weight, then scores and mix."""
    source = next((shape for shape in shapes if len(shape) == 3), None)
    heads = [arg for arg in node.args if type(arg) is int][1:2]
    weights = [shape for shape in shapes if len(shape) == 2]
    if source is None or not heads or not 0 < heads[0] <= source[2]:
        return ()
    batch, length, width = source
    depth = width // heads[0]
    linears = [MatMul(1, batch * length, inner, outer) for outer, inner in weights]
    scores = MatMul(batch * heads[0], length, depth, length)
    return (*linears, scores, MatMul(batch * heads[0], length, length, depth))


def flops(node: Node) -> int:
    """Return the floating-point operations of a call."""
    found = products(node)
    if found:
        return sum(product.flops for product in found)
    return elements(node) * _PER_ELEMENT.get(plain_name(node.op), _PER_ELEMENT.get(family(node.op), 1))


def _matmul(operands: list[tuple[int, ...]]) -> tuple[MatMul, ...]:
    if len(operands) < 2 or not operands[0] or not operands[1]:
        return ()
    left, right = operands
    n = 1 if len(right) == 1 else right[-1]
    if len(right) <= 2:
        return (MatMul(1, math.prod(left[:-1]), left[-1], n),)
    m = 1 if len(left) == 1 else left[-2]
    return (MatMul(max(math.prod(left[:-2]), math.prod(right[:-2])), m, left[-1], n),)


def _grouped(node: Node, operands: list[tuple[int, ...]]) -> tuple[MatMul, ...]:
    """Return the products of experts: rows, columns or the contraction are in groups, of the same size on average."""
    made = next((view.shape for view in node.results if view is not None), ())
    if len(operands) < 2 or len(made) < 2:
        return ()
    left, right = operands
    rows, inner, columns = left[-2], left[-1], right[-1]
    match len(left), len(right):
        case 2, 3:
            return (MatMul(right[0], -(-rows // right[0]), inner, columns),)
        case 3, 2:
            return (MatMul(left[0], rows, inner, -(-columns // left[0])),)
        case 2, 2 if len(made) == 3:
            return (MatMul(made[0], rows, -(-inner // made[0]), columns),)
    return _matmul(operands)


def _convolution(node: Node, *, backward: bool) -> tuple[MatMul, ...]:
    tensors = [arg for arg in node.args if isinstance(arg, View)]
    made = [view for view in node.results if view is not None]
    if len(tensors) < (3 if backward else 2) or not (backward or made):
        return ()
    result, data, weight = tensors[:3] if backward else (made[0], *tensors[:2])
    if min(len(data.shape), len(weight.shape)) < 2:
        return ()
    transposed = [arg for arg in node.args if isinstance(arg, bool)][:1] == [True]
    swept = (data if transposed else result).shape
    groups = _groups(node, backward=backward)
    forward = MatMul(
        groups,
        math.prod(swept[:1] + swept[2:]),
        math.prod(weight.shape[1:]),
        weight.shape[0] // max(groups, 1),
    )
    if not backward:
        return (forward,)
    wanted = [view is not None for view in node.results[:2]]
    data_gradient = MatMul(groups, forward.m, forward.n, forward.k)
    weight_gradient = MatMul(groups, forward.n, forward.m, forward.k)
    pairs = zip((data_gradient, weight_gradient), wanted, strict=False)
    return tuple(product for product, needed in pairs if needed)


def _groups(node: Node, *, backward: bool) -> int:
    # The last plain integer of the schema: convolution(..., groups), convolution_backward(..., groups, output_mask).
    numbers = [arg for arg in node.args[4 if backward else 3 :] if type(arg) is int]
    return numbers[-1] if numbers else 1


def _attention(shapes: list[tuple[int, ...]], *, backward: bool) -> tuple[MatMul, ...]:
    tensors = [shape for shape in shapes if len(shape) == 4]
    tensors = tensors[1:] if backward else tensors
    if len(tensors) < 3:
        return ()
    (batch, heads, queries, depth), keys, values = tensors[:3]
    count, length, width = batch * heads, keys[2], values[3]
    scores = MatMul(count, queries, depth, length)
    mixed = MatMul(count, queries, length, width)
    if not backward:
        return (scores, mixed)
    return (
        scores,
        MatMul(count, queries, width, length),
        MatMul(count, length, queries, width),
        MatMul(count, queries, length, depth),
        MatMul(count, length, queries, depth),
    )


_ITEM_BYTES = {name: nbytes for nbytes, names in _TYPES_BY_BYTES.items() for name in names.split()}


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element; 4 for types not listed, 1 for the 8-bit floats."""
    if dtype.startswith("float8"):
        return 1
    return _ITEM_BYTES.get(dtype, 4)


def numel(view: View) -> int:
    """Return the elements of a tensor."""
    return math.prod(view.shape)


def touched_bytes(view: View) -> int:
    """Return the bytes of memory behind a view: a dimension with stride 0 is one element wide."""
    elements = math.prod(
        1 if stride == 0 and size > 1 else size
        for size, stride in zip(view.shape, view.strides, strict=False)
    )
    return elements * item_bytes(view.dtype)


def written(node: Node) -> tuple[View, ...]:
    """Return the views that a call writes: its results and what it changes in place, each once."""
    found = [view for view in node.results if view is not None]
    name = split_name(node.op)[1]
    positions = _WRITTEN_POSITIONS.get(family(node.op), ())
    if "batch_norm" in name and not _updates_statistics(node, name):
        positions = ()
    if not positions and name.endswith("_") and not name.endswith("__"):
        positions = (0,)
    for position in positions:
        if position < len(node.args):
            found += views(node.args[position])
    for key, value in node.kwargs:
        if key == "out":
            found += views(value)
    return tuple(dict.fromkeys(found))


def _updates_statistics(node: Node, name: str) -> bool:
    """Return whether a batch norm changes its running statistics: the forward pass does, in training."""
    if name.endswith("_backward"):
        return False
    return "with_update" in name or node.args[5:6] == (True,)


def read_bytes(node: Node) -> int:
    """Return the bytes that a call reads from device memory."""
    found = dict.fromkeys(reads(node))
    if family(node.op) in _OVERWRITING:
        for view in written(node):
            found.pop(view, None)
    return sum(touched_bytes(view) for view in found)


def write_bytes(node: Node) -> int:
    """Return the bytes that a call writes to device memory."""
    return sum(touched_bytes(view) for view in written(node))


def elements(node: Node) -> int:
    """Return the elements that a call works on: those of the larger side, list forms summed up."""
    consumed = max((numel(view) for view in reads(node)), default=0)
    produced = sum(numel(view) for view in written(node))
    return max(consumed, produced)
