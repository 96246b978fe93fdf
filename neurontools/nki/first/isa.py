"""The functions of nki.isa (first generation): the instructions of the second, which return their results.

Sources: AWS Neuron documentation 2.26, "nki.isa".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.nki import instructions
from neurontools.nki.constants import engine as engines
from neurontools.nki.constants import reduce_cmd as commands
from neurontools.nki.context import fail
from neurontools.nki.first import selections, transfers
from neurontools.nki.first.errors import refuse_size
from neurontools.nki.first.execution import broadcast, broadcast_shape, compute, destination, part_for
from neurontools.nki.first.index import selection
from neurontools.nki.first.language import dropout as language_dropout
from neurontools.nki.first.operands import chip_tile, documented, result_type, second_result
from neurontools.nki.first.tile import Tile
from neurontools.nki.launch import get_nc_version

if TYPE_CHECKING:
    from neurontools.nki.tensor import NkiTensor

_BIAS_TYPES = frozenset({"float32", "float16", "bfloat16"})


def activation(
    op: Any,
    data: Any,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    """Compute `op(data * scale + bias)` on the Scalar engine."""
    source = chip_tile("activation", data)
    if bias is not None:
        _check_bias(bias)
    if isinstance(scale, Tile) and scale.operand.dtype != "float32":
        fail(
            "activation",
            f"Scale parameter of activation must be a scalar or vector of type float32, not {scale.operand.dtype}.",
        )
    selected = selection(mask, source.shape)

    def emit(dst: NkiTensor, view: NkiTensor, offset: Any, factor: Any) -> None:
        rows = (selected[0], slice(0, 1)) if isinstance(selected, tuple) else None
        result = second_result(reduce_res, rows, "activation")
        instructions.activation(dst, op, view, offset, factor, reduce_op, result, reduce_cmd)

    return compute("activation", source.shape, result_type(dtype, source), mask, emit, source, bias, scale)


def _check_bias(bias: Any) -> None:
    kind = bias.operand.dtype if isinstance(bias, Tile) else type(bias).__name__
    if kind not in _BIAS_TYPES:
        fail(
            "activation",
            f"Bias parameter of activation or activation_reduce must be a vector of type float32, float16, or bfloat16, not {kind}.",
            "make one with nisa.memset((128, 1), value, dtype=nl.float32)",
        )


def activation_reduce(
    op: Any,
    data: Any,
    *,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    """Compute `op(data * scale + bias)` and the sum of each partition."""
    return activation(
        op,
        data,
        bias=bias,
        scale=scale,
        reduce_op=reduce_op,
        reduce_res=reduce_res,
        reduce_cmd=commands.reset_reduce,
        mask=mask,
        dtype=dtype,
    )


def reciprocal(data: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Compute 1 / data on the Vector engine."""
    source = chip_tile("reciprocal", data)
    return compute(
        "reciprocal", source.shape, result_type(dtype, source), mask, instructions.reciprocal, source
    )


def tensor_tensor(
    data1: Any,
    data2: Any,
    op: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engines.unknown,
) -> Tile:
    """Compute `data1 op data2` element by element."""
    first, second = chip_tile("tensor_tensor", data1), chip_tile("tensor_tensor", data2)
    if first.shape[0] != second.shape[0]:
        refuse_size(
            "tensor_tensor",
            "number of partitions (dimension 0 size of a tile) mismatch in parameters"
            f" (data1{list(first.shape)}, data2{list(second.shape)}) of 'tensor_tensor'",
            "repeat partitions with broadcast_to",
        )
    shape = broadcast_shape("tensor_tensor", first.shape, second.shape)

    def emit(dst: NkiTensor, left: NkiTensor, right: NkiTensor) -> None:
        left, right = (
            view if view.size == dst.size else broadcast(view, dst.shape) for view in (left, right)
        )
        instructions.tensor_tensor(dst, left, right, op, engine)

    return compute("tensor_tensor", shape, result_type(dtype, first, second), mask, emit, first, second)


def tensor_scalar(
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engines.unknown,
) -> Tile:
    """Compute `(data op0 operand0) op1 operand1`."""
    source = chip_tile("tensor_scalar", data)

    def emit(dst: NkiTensor, view: NkiTensor, first: Any, second: Any) -> None:
        instructions.tensor_scalar(dst, view, op0, first, reverse0, op1, second, reverse1, engine)

    return compute(
        "tensor_scalar", source.shape, result_type(dtype, source), mask, emit, source, operand0, operand1
    )


def scalar_tensor_tensor(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Tile:
    """Compute `(data op0 operand0) op1 operand1`; operand1 is a tile."""
    source = chip_tile("scalar_tensor_tensor", data)

    def emit(dst: NkiTensor, view: NkiTensor, first: Any, second: Any) -> None:
        instructions.scalar_tensor_tensor(dst, view, op0, first, op1, second, reverse0, reverse1)

    return compute(
        "scalar_tensor_tensor",
        source.shape,
        result_type(dtype, source),
        mask,
        emit,
        source,
        operand0,
        operand1,
    )


def tensor_scalar_reduce(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Tile:
    """Compute `data op0 operand0` and its reduction over each partition."""
    source = chip_tile("tensor_scalar_reduce", data)
    selected = selection(mask, source.shape)

    def emit(dst: NkiTensor, view: NkiTensor, first: Any) -> None:
        rows = (selected[0], slice(0, 1)) if isinstance(selected, tuple) else None
        result = second_result(reduce_res, rows, "tensor_scalar_reduce")
        instructions.tensor_scalar_reduce(dst, view, op0, first, reduce_op, result, reverse0)

    return compute(
        "tensor_scalar_reduce", source.shape, result_type(dtype, source), mask, emit, source, operand0
    )


def tensor_scalar_cumulative(
    *,
    src: Any,
    dst: Any,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = commands.reset_reduce,
    mask: Any = None,
) -> None:
    """Compute `src op0 imm0` and write its running reduction by op1."""
    function = "tensor_scalar_cumulative"
    target = chip_tile(function, dst)
    selected = selection(mask, target.shape)
    if selected is False:
        return
    tile, first, start = (
        part_for(item, selected, target.shape, function) if isinstance(item, Tile) else item
        for item in (chip_tile(function, src), imm0, imm1)
    )
    instructions.tensor_scalar_cumulative(
        destination(target, selected, function), tile, op0, op1, first, start, reduce_cmd
    )


def tensor_tensor_scan(
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
) -> Tile:
    """Compute the scan `r[i] = (data0[i] op0 r[i-1]) op1 data1[i]` of each partition."""
    first, second = chip_tile("tensor_tensor_scan", data0), chip_tile("tensor_tensor_scan", data1)
    shape = broadcast_shape("tensor_tensor_scan", first.shape, second.shape)

    def emit(dst: NkiTensor, left: NkiTensor, right: NkiTensor, start: Any) -> None:
        left, right = (
            view if view.size == dst.size else broadcast(view, dst.shape) for view in (left, right)
        )
        instructions.tensor_tensor_scan(dst, left, right, start, op0, op1, reverse0, reverse1)

    return compute(
        "tensor_tensor_scan", shape, result_type(dtype, first, second), mask, emit, first, second, initial
    )


def dropout(data: Any, prob: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Replace elements with zeros at random."""
    return language_dropout(data, prob, dtype=dtype, mask=mask)


FUNCTIONS: dict[str, Any] = {
    function.__name__: documented(function)
    for function in (
        activation, activation_reduce, dropout, get_nc_version, reciprocal, scalar_tensor_tensor, selections.affine_select,
        selections.bn_aggr, selections.bn_stats, selections.local_gather, selections.max8, selections.nc_find_index8,
        selections.nc_match_replace8, selections.range_select, selections.select_reduce, selections.sequence_bounds,
        selections.tensor_partition_reduce, selections.tensor_reduce, tensor_scalar, tensor_scalar_cumulative,
        tensor_scalar_reduce, tensor_tensor, tensor_tensor_scan, transfers.dma_copy, transfers.dma_transpose, transfers.iota, transfers.memset,
        transfers.nc_matmul, transfers.nc_stream_shuffle, transfers.nc_transpose, transfers.tensor_copy,
        transfers.tensor_copy_dynamic_dst, transfers.tensor_copy_predicated,
    )
}  # fmt: skip
FUNCTIONS["tensor_copy_dynamic_src"] = transfers.tensor_copy
"""What `neuronxcc.nki.isa` offers, by name."""
