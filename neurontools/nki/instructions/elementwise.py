"""Instructions that compute element by element, with the reductions that some of them do besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.constants import engine as engines
from neurontools.nki.constants import reduce_cmd as commands
from neurontools.nki.context import Record, running
from neurontools.nki.dtypes import FLOATS, to_float32
from neurontools.nki.instructions.accumulators import accumulate, continue_reduction, identity_of
from neurontools.nki.instructions.arithmetic import apply_scalar, binary
from neurontools.nki.instructions.operands import (
    GENERATION_3,
    NUMBERS,
    PSUM,
    check_bits,
    check_conversion,
    check_elementwise,
    check_not_both_psum,
    check_tile,
    checked,
    engine_name,
    need_binary,
    need_operator,
    reads,
    refuse,
    scalar,
)
from neurontools.nki.operators import OPERATORS
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from neurontools.nki.operators import MathOperator

_WIDE_INTEGERS = frozenset({"int32", "uint32"})
_SCALAR_PAIRS_GEN3 = (("multiply", "add"), ("multiply", ""), ("add", ""))


def tensor_copy(dst: Any, src: Any, engine: Any = engines.unknown, name: str | None = None) -> Record:
    """Copy a tile on the chip; equal types keep their bits, others go through float32."""
    chosen = checked(_check_copy, (dst, src), engine)
    values, unwritten = src.read_partly("src")
    keeps_bits = values.dtype == dst.storage.held_dtype(dst.dtype)
    dst.write(values if keeps_bits else to_float32(values))
    dst.mark_partly(unwritten)
    return running().issue("tensor_copy", chosen, reads(src), (dst.access(),), name)


def _check_copy(dst: Any, src: Any, engine: Any) -> str:
    """Return the engine of a copy."""
    check_elementwise("tensor_copy", dst, src=src)
    chosen = engine_name("tensor_copy", engine, engines.vector, engines.scalar, engines.gpsimd)
    if chosen == "gpsimd" and PSUM in (dst.buffer, src.buffer):
        refuse(
            "tensor_copy",
            "the gpsimd engine cannot access PSUM",
            "choose the vector or scalar engine",
            dst,
            src,
        )
    if chosen == "scalar" and running().limits.generation < GENERATION_3:
        refuse(
            "tensor_copy",
            f"does not run on the scalar engine of {running().limits.target}",
            "use nisa.activation with op=nl.copy",
        )
    check_conversion("tensor_copy", dst, src)
    return chosen


def memset(dst: Any, value: Any, engine: Any = engines.unknown, name: str | None = None) -> Record:
    """Fill a tile with a constant."""
    check_tile("memset", "dst", dst)
    chosen = engine_name("memset", engine, engines.vector, engines.gpsimd)
    if not isinstance(value, NUMBERS):
        refuse("memset", f"value is a {type(value).__name__}, not a number")
    if dst.dtype.endswith("_x4") and value != 0:
        refuse("memset", f"fills {dst.dtype} with 0 alone, not with {value}", "", dst)
    kind = dst.storage.held_dtype(dst.dtype)
    if not _is_held(float(value), dst.dtype, kind):
        refuse("memset", f"{value} cannot be held by {dst.dtype}", "", dst)
    dst.write(np.full(dst.shape, value, dtype=kind if kind.kind in "iub" else np.float32))
    return running().issue("memset", chosen, (), reads(dst), name)


def _is_held(value: float, dtype: str, kind: np.dtype[Any]) -> bool:
    """Return whether a type has a number: a whole one of its range, if it is a type of integers."""
    if dtype in FLOATS or kind.kind not in "iu":
        return True
    limits = np.iinfo(kind)
    return float(value).is_integer() and limits.min <= value <= limits.max


def tensor_copy_predicated(
    dst: Any, src: Any, predicate: Any, reverse_pred: bool = False, name: str | None = None
) -> Record:
    """Copy elements where a predicate holds; the others keep their values."""
    opcode = "tensor_copy_predicated"
    check_elementwise(opcode, dst, predicate=predicate)
    if predicate.dtype not in {"uint8", "uint16", "uint32"}:
        refuse(opcode, f"predicate is {predicate.dtype}, must be uint8, uint16 or uint32", "", predicate)
    holds = (predicate.read("predicate") != 0) != reverse_pred
    if isinstance(src, NkiTensor):
        check_elementwise(opcode, dst, src=src)
        check_not_both_psum(opcode, ("src", src), ("predicate", predicate))
        values: Any = src.read32("src").reshape(dst.shape)
    else:
        values = np.float32(src)
    before = dst.array().astype(np.float32) if dst.dtype in FLOATS else dst.array()
    dst.write(np.where(holds.reshape(dst.shape), values, before))
    return running().issue(opcode, "vector", reads(src, predicate, dst), reads(dst), name)


def tensor_tensor(
    dst: Any, data1: Any, data2: Any, op: Any, engine: Any = engines.unknown, name: str | None = None
) -> Record:
    """Compute `data1 op data2` element by element."""
    opcode = "tensor_tensor"
    operator, chosen, is_exact = checked(_check_tensors, (dst, data1, data2), opcode, op, engine)
    (first, unwritten1), (second, unwritten2) = data1.read_partly("data1"), data2.read_partly("data2")
    if first.shape != second.shape:
        second = second.reshape(first.shape)
    dst.write(binary(operator, first, second, is_exact=is_exact))
    dst.mark_partly(unwritten1, unwritten2)
    return running().issue(opcode, chosen, reads(data1, data2), (dst.access(),), name, op=operator.name)


def _check_tensors(
    dst: Any, data1: Any, data2: Any, opcode: str, op: Any, engine: Any
) -> tuple[MathOperator, str, bool]:
    """Return operator, engine, and whether the engine computes exactly with integers."""
    operator = need_binary(opcode, op)
    check_elementwise(opcode, dst, data1=data1, data2=data2)
    check_not_both_psum(opcode, ("data1", data1), ("data2", data2))
    check_bits(opcode, operator, dst, data1, data2)
    chosen = engine_name(opcode, engine, engines.vector, engines.gpsimd)
    in_psum = PSUM in (dst.buffer, data1.buffer, data2.buffer)
    if operator.name == "power" and not chosen:
        chosen = "gpsimd"
    is_exact = {dst.dtype, data1.dtype, data2.dtype} <= _WIDE_INTEGERS
    if is_exact and not chosen and not in_psum:
        chosen = "gpsimd"
    if chosen == "gpsimd" and in_psum:
        refuse(opcode, "the gpsimd engine cannot access PSUM", "copy the operand to SBUF", dst, data1, data2)
    return operator, chosen, is_exact and chosen == "gpsimd"


def tensor_scalar(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = engines.unknown,
    name: str | None = None,
) -> Record:
    """Compute `(data op0 operand0) op1 operand1`; the operands are numbers or one element for each partition."""
    opcode = "tensor_scalar"
    first, second, chosen = checked(_check_scalars, (dst, data), opcode, op0, op1, engine)
    given, unwritten = data.read_partly("data")
    values = apply_scalar(opcode, given, first, operand0, data, reverse=reverse0, argument="operand0")
    if second is not None:
        values = apply_scalar(opcode, values, second, operand1, data, reverse=reverse1, argument="operand1")
    dst.write(values)
    dst.mark_partly(unwritten)
    names = (first.name, second.name if second is not None else "")
    return running().issue(
        opcode,
        chosen,
        reads(data, operand0, operand1),
        reads(dst),
        name,
        op=first.name,
        op1=names[1],
        fits_scalar=names in _SCALAR_PAIRS_GEN3,
    )


def _check_scalars(
    dst: Any, data: Any, opcode: str, op0: Any, op1: Any, engine: Any
) -> tuple[MathOperator, MathOperator | None, str]:
    """Return operators and engine."""
    check_elementwise(opcode, dst, data=data)
    first = need_operator(opcode, op0, "op0")
    second = need_operator(opcode, op1, "op1") if op1 is not None else None
    if second is not None and first.is_bitwise != second.is_bitwise:
        refuse(
            opcode,
            f"op0 {first.name} and op1 {second.name} are not both operators on bits or both arithmetic",
        )
    check_bits(opcode, first, dst, data)
    chosen = engine_name(opcode, engine, engines.vector, engines.scalar, engines.gpsimd)
    _check_scalar_engine(opcode, chosen, first, second)
    return first, second, chosen


def _check_scalar_engine(opcode: str, chosen: str, first: MathOperator, second: MathOperator | None) -> None:
    if chosen == "gpsimd" and "rsqrt" not in {first.name, second.name if second else ""}:
        refuse(
            opcode, f"the gpsimd engine computes rsqrt alone, not {first.name}", "choose the vector engine"
        )
    if chosen == "scalar" and running().limits.generation == GENERATION_3:
        pair = (first.name, second.name if second else "")
        if pair not in _SCALAR_PAIRS_GEN3:
            refuse(
                opcode,
                f"the scalar engine of trn2 has no {' and '.join(filter(None, pair))}",
                "choose the vector engine",
            )


def scalar_tensor_tensor(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Record:
    """Compute `(data op0 operand0) op1 operand1`; operand0 is a scalar, operand1 a tile."""
    opcode = "scalar_tensor_tensor"
    check_elementwise(opcode, dst, data=data, operand1=operand1)
    check_not_both_psum(opcode, ("data", data), ("operand1", operand1))
    second = need_binary(opcode, op1, "op1")
    if second.is_bitwise or need_operator(opcode, op0, "op0").is_bitwise:
        refuse(opcode, "computes with arithmetic operators alone")
    values = apply_scalar(
        opcode, data.read("data"), op0, operand0, data, reverse=reverse0, argument="operand0"
    )
    tile = operand1.read32("operand1").reshape(values.shape)
    dst.write(binary(second, tile, values) if reverse1 else binary(second, values, tile))
    return running().issue(
        opcode,
        "vector",
        reads(data, operand0, operand1),
        reads(dst),
        name,
        op=need_operator(opcode, op0).name,
        op1=second.name,
    )


def reciprocal(dst: Any, data: Any, name: str | None = None) -> Record:
    """Compute 1 / data on the Vector engine."""
    check_elementwise("reciprocal", dst, data=data)
    dst.write(binary(OPERATORS["reciprocal"], data.read("data"), None))
    return running().issue("reciprocal", "vector", reads(data), reads(dst), name)


def tensor_scalar_reduce(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any = None,
    reverse0: bool = False,
    reduce_cmd: Any = commands.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> Record:
    """Compute `data op0 operand0` and its reduction over all elements of each partition."""
    opcode = "tensor_scalar_reduce"
    check_elementwise(opcode, dst, data=data)
    joins = need_operator(opcode, reduce_op, "reduce_op")
    if joins.name not in {"add", "multiply", "maximum", "minimum"}:
        refuse(opcode, f"reduce_op is {joins.name}, must be add, multiply, maximum or minimum")
    values = apply_scalar(
        opcode, data.read("data"), op0, operand0, data, reverse=reverse0, argument="operand0"
    )
    dst.write(values)
    start = None if reduce_init is None else scalar(opcode, "reduce_init", reduce_init, data).reshape(-1, 1)
    column = accumulate(opcode, "vector", reduce_cmd, joins, to_float32(values), start)
    if reduce_res is not None and column is not None:
        check_tile(opcode, "reduce_res", reduce_res)
        reduce_res.write(-column if reduce_res_negate else column)
    return running().issue(
        opcode,
        "vector",
        reads(data, operand0),
        reads(dst, reduce_res),
        name,
        op=need_operator(opcode, op0).name,
    )


def tensor_scalar_cumulative(
    dst: Any,
    src: Any,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = commands.reset_reduce,
    name: str | None = None,
) -> Record:
    """Compute `src op0 imm0` and write the running reduction by op1."""
    opcode = "tensor_scalar_cumulative"
    check_elementwise(opcode, dst, src=src)
    for operand, tile in (("src", src), ("dst", dst)):
        if tile.dtype in _WIDE_INTEGERS:
            refuse(
                opcode, f"{operand} is {tile.dtype}, which the instruction does not have", "use float32", tile
            )
    joins = need_operator(opcode, op1, "op1")
    if joins.name not in {"add", "subtract", "multiply", "maximum", "minimum"}:
        refuse(opcode, f"op1 is {joins.name}, must be add, subtract, multiply, maximum or minimum")
    values = apply_scalar(opcode, src.read("src"), op0, imm0, src, reverse=False, argument="imm0")
    flat = to_float32(values).reshape(values.shape[0], -1)
    column = np.full(flat.shape[0], identity_of(joins), dtype=np.float32)
    if reduce_cmd is commands.load_reduce:
        column = np.broadcast_to(scalar(opcode, "imm1", imm1, src).reshape(-1), column.shape).astype(
            np.float32
        )
    elif reduce_cmd is commands.reduce:
        column = continue_reduction(opcode, "vector", column[:, None], running().accumulators)[:, 0]
    out = np.empty_like(flat)
    for index in range(flat.shape[1]):
        column = joins.compute(flat[:, index], column)
        out[:, index] = column
    running().accumulators["vector"] = column[:, None]
    running().accumulators["vector", "owner"] = opcode
    dst.write(out)
    return running().issue(opcode, "vector", reads(src, imm0, imm1), reads(dst), name)


def tensor_tensor_scan(
    dst: Any,
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Record:
    """Compute the scan `r[i] = (data0[i] op0 r[i-1]) op1 data1[i]` of each partition."""
    opcode = "tensor_tensor_scan"
    check_elementwise(opcode, dst, data0=data0, data1=data1)
    check_not_both_psum(opcode, ("data0", data0), ("data1", data1))
    first, second = need_binary(opcode, op0, "op0"), need_binary(opcode, op1, "op1")
    if first.is_bitwise or second.is_bitwise:
        refuse(opcode, "computes with arithmetic operators alone")
    # One column after the other: columns that follow each other in memory are much faster.
    left = np.ascontiguousarray(data0.read32("data0").reshape(data0.shape[0], -1).T)
    right = np.ascontiguousarray(data1.read32("data1").reshape(data1.shape[0], -1).T)
    state = np.broadcast_to(
        np.asarray(scalar(opcode, "initial", initial, data0)).reshape(-1), (left.shape[1],)
    )
    out = np.empty_like(left)
    for index in range(left.shape[0]):
        a, b = left[index], right[index]
        step = first.compute(state, a) if reverse0 else first.compute(a, state)
        state = second.compute(b, step) if reverse1 else second.compute(step, b)
        out[index] = state
    dst.write(np.ascontiguousarray(out.T))
    return running().issue(opcode, "vector", reads(data0, data1, initial), reads(dst), name)


def dropout(dst: Any, data: Any, prob: Any, name: str | None = None) -> Record:
    """Replace elements with zeros at random."""
    opcode = "dropout"
    check_elementwise(opcode, dst, data=data)
    if dst.dtype != data.dtype:
        refuse(opcode, f"dst is {dst.dtype}, must be {data.dtype} as the data", "", dst, data)
    from neurontools.nki.instructions.random import uniform

    keep = uniform("vector", data.shape) >= scalar(opcode, "prob", prob, data)
    dst.write(data.read("data") * keep)
    return running().issue(opcode, "vector", reads(data, prob), reads(dst), name)
