"""Instructions that compute element by element, with the reductions that some of them do besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.constants import engine as engines
from neurontools.nki.constants import reduce_cmd as commands
from neurontools.nki.context import Record, running
from neurontools.nki.dtypes import FLOATS, to_float32
from neurontools.nki.instructions.operands import (
    GENERATION_3,
    GENERATION_4,
    PSUM,
    check_bits,
    check_elementwise,
    check_not_both_psum,
    check_tile,
    engine_name,
    need_operator,
    needs_generation,
    reads,
    refuse,
    scalar,
)
from neurontools.nki.operators import ACTIVATIONS, OPERATORS
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from neurontools.nki.operators import MathOperator

_WIDE_INTEGERS = frozenset({"int32", "uint32"})
_SCALAR_PAIRS_GEN3 = (("multiply", "add"), ("multiply", ""), ("add", ""))
_ACTIVATE2_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)


def tensor_copy(dst: Any, src: Any, engine: Any = engines.unknown, name: str | None = None) -> Record:
    """Copy a tile on the chip; equal types keep their bits, others go through float32."""
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
    values = src.read("src")
    keeps_bits = values.dtype == dst.storage.typed(dst.dtype).dtype
    dst.write(values if keeps_bits else to_float32(values))
    return running().issue("tensor_copy", chosen, reads(src), reads(dst), name)


def memset(dst: Any, value: Any, engine: Any = engines.unknown, name: str | None = None) -> Record:
    """Fill a tile with a constant."""
    check_tile("memset", "dst", dst)
    chosen = engine_name("memset", engine, engines.vector, engines.gpsimd)
    if dst.dtype.endswith("_x4") and value != 0:
        refuse("memset", f"fills {dst.dtype} with 0 alone, not with {value}", "", dst)
    if isinstance(value, float) and not value.is_integer() and dst.dtype not in FLOATS:
        refuse("memset", f"{value} cannot be held by {dst.dtype}", "", dst)
    kind = dst.storage.typed(dst.dtype).dtype
    dst.write(np.full(dst.shape, value, dtype=kind if kind.kind in "iub" else np.float32))
    return running().issue("memset", chosen, (), reads(dst), name)


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
    operator = need_operator(opcode, op)
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
    first, second = data1.read("data1"), data2.read("data2")
    if first.shape != second.shape:
        second = second.reshape(first.shape)
    dst.write(binary(operator, first, second, is_exact=is_exact and chosen == "gpsimd"))
    return running().issue(opcode, chosen, reads(data1, data2), reads(dst), name, op=operator.name)


def binary(operator: MathOperator, first: Any, second: Any, *, is_exact: bool = False) -> np.ndarray:
    """Compute an operator: on bits, exactly on 32-bit integers, or else in float32."""
    if operator.is_bitwise:
        if operator.arity == 1:
            return np.asarray(operator.compute(first))
        if isinstance(second, np.ndarray) and second.dtype != first.dtype:
            second = second.astype(first.dtype)
        return np.asarray(operator.compute(first, second))
    if is_exact:
        return np.asarray(operator.compute(first.astype(np.int64), second.astype(np.int64)))
    first = to_float32(first) if isinstance(first, np.ndarray) else first
    if operator.arity == 1:
        return np.asarray(operator.compute(first))
    second = to_float32(second) if isinstance(second, np.ndarray) else second
    return np.asarray(operator.compute(first, second))


def apply_scalar(
    opcode: str, values: np.ndarray, op: Any, operand: Any, data: NkiTensor, *, reverse: bool, argument: str
) -> np.ndarray:
    """Compute an operator of a tile and a scalar operand."""
    operator = need_operator(opcode, op, argument.replace("operand", "op"))
    if operator.arity == 1 and not operator.is_bitwise:
        return binary(operator, values, None)
    if operator.is_bitwise:
        column = scalar(opcode, argument, operand, data, values.dtype)
        if not isinstance(column, np.ndarray):
            column = np.full((1,) * values.ndim, column, dtype=values.dtype)
        if reverse:
            return binary(operator, np.broadcast_to(column, values.shape).copy(), values)
        return binary(operator, values, column)
    column = scalar(opcode, argument, operand, data)
    values = to_float32(values)
    return binary(operator, column, values) if reverse else binary(operator, values, column)


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
    values = apply_scalar(
        opcode, data.read("data"), first, operand0, data, reverse=reverse0, argument="operand0"
    )
    if second is not None:
        values = apply_scalar(opcode, values, second, operand1, data, reverse=reverse1, argument="operand1")
    dst.write(values)
    return running().issue(opcode, chosen, reads(data, operand0, operand1), reads(dst), name, op=first.name)


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
    second = need_operator(opcode, op1, "op1")
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


# ---- accumulator registers


def _identity(operator: MathOperator) -> float:
    return 0.0 if operator.identity is None else float(operator.identity)


def accumulate(
    opcode: str, unit: str, command: commands, operator: MathOperator, values: np.ndarray, start: Any = None
) -> np.ndarray | None:
    """Reduce values of each partition into the accumulator registers of an engine.

    Args:
        opcode: the instruction, for warnings.
        unit: the engine.
        command: what happens with the registers.
        operator: how values are joined.
        values: float32 of shape (partitions, ...).
        start: a column that `load_reduce` starts with.

    Returns:
        The registers as a column; None where they hold nothing.
    """
    registers = running().accumulators
    if command is commands.idle:
        registers[unit, "owner"] = opcode
        return registers.get(unit)
    column = np.full((values.shape[0], 1), _identity(operator), dtype=np.float32)
    if command is commands.load_reduce:
        column = np.broadcast_to(np.asarray(start, dtype=np.float32), column.shape).copy()
    elif command is commands.reduce:
        column = _continue(opcode, unit, column, registers)
    if command is not commands.reset:
        flat = values.reshape(values.shape[0], -1)
        reduced = reduce_axis(operator, flat, 1)[:, None]
        column = binary(operator, column, reduced) if operator.name != "subtract" else column - reduced
    registers[unit] = column
    registers[unit, "owner"] = opcode
    return column


def _continue(opcode: str, unit: str, column: np.ndarray, registers: dict[Any, Any]) -> np.ndarray:
    before = registers.get(unit)
    owner = registers.get((unit, "owner"), opcode)
    launch = running().launch
    if before is None:
        if launch.checks:
            launch.warn("accumulator", f"{opcode}: continues a reduction that no instruction has started")
        return column
    if owner != opcode and launch.checks:
        launch.warn(
            "accumulator", f"{opcode}: {owner} used the accumulator registers of the {unit} engine in between"
        )
    if before.shape[0] < column.shape[0]:
        column[: before.shape[0]] = before
        return column
    return np.array(before[: column.shape[0]])


def reduce_axis(operator: MathOperator, values: np.ndarray, axis: Any) -> np.ndarray:
    """Reduce float32 values over axes by an operator."""
    match operator.name:
        case "add" | "average":
            return np.asarray(np.add.reduce(values, axis=axis))
        case "maximum":
            return np.asarray(np.maximum.reduce(values, axis=axis))
        case "minimum":
            return np.asarray(np.minimum.reduce(values, axis=axis))
        case "multiply":
            return np.asarray(np.multiply.reduce(values, axis=axis))
        case "abs_max":
            return np.asarray(np.maximum.reduce(np.abs(values), axis=axis))
        case "abs_min":
            return np.asarray(np.minimum.reduce(np.abs(values), axis=axis))
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = np.moveaxis(values, axes, range(-len(axes), 0)).reshape(
        *[s for n, s in enumerate(values.shape) if n not in axes], -1
    )
    result = moved[..., 0]
    for column in range(1, moved.shape[-1]):
        result = operator.compute(result, moved[..., column])
    return np.asarray(result)


def activation(
    dst: Any,
    op: Any,
    data: Any,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    name: str | None = None,
) -> Record:
    """Compute `op(data * scale + bias)` on the Scalar engine, and add up the results in its registers."""
    opcode = "activation"
    operator = _activation(opcode, op)
    check_elementwise(opcode, dst, data=data)
    if (
        bias is not None
        and not isinstance(bias, NkiTensor)
        and bias != 0
        and running().limits.generation < GENERATION_3
    ):
        refuse(
            opcode,
            "bias is a number, on trn1 it must be a tensor of shape (partitions, 1)",
            "write it to a tile with nisa.memset",
        )
    values = data.read32("data")
    if isinstance(scale, NkiTensor) or scale != 1:
        values = values * scalar(opcode, "scale", scale, data)
    if bias is not None:
        values = values + scalar(opcode, "bias", bias, data)
    _check_range(opcode, operator, values)
    values = np.asarray(operator.compute(values), dtype=np.float32)
    return _finish_activation(
        opcode, dst, values, (data, bias, scale), operator, reduce_op, reduce_res, reduce_cmd, name
    )


def _finish_activation(
    opcode: str,
    dst: NkiTensor,
    values: np.ndarray,
    operands: tuple[Any, ...],
    operator: MathOperator,
    reduce_op: Any,
    reduce_res: Any,
    command: Any,
    name: str | None,
) -> Record:
    dst.write(values)
    joins = need_operator(opcode, reduce_op, "reduce_op") if reduce_op is not None else OPERATORS["add"]
    column = accumulate(opcode, "scalar", command, joins, values)
    if reduce_res is not None:
        check_tile(opcode, "reduce_res", reduce_res)
        if column is None:
            refuse(
                opcode,
                "reduce_res is read, and no instruction has written the accumulator registers",
                "pass reduce_cmd=nisa.reduce_cmd.reset_reduce",
            )
        reduce_res.write(column[: reduce_res.shape[0]])
    return running().issue(
        opcode,
        "scalar",
        reads(*operands),
        reads(dst, reduce_res),
        name,
        op=operator.name,
        reduces=reduce_res is not None,
        registers=command is not commands.idle,
    )


def _activation(opcode: str, op: Any) -> MathOperator:
    operator = need_operator(opcode, op)
    if operator.name not in ACTIVATIONS:
        refuse(
            opcode,
            f"{operator.name} does not run as an activation function",
            "use nisa.tensor_scalar or nisa.tensor_tensor for operators",
        )
    return operator


def _check_range(opcode: str, operator: MathOperator, values: np.ndarray) -> None:
    if operator.valid is None or not running().launch.checks:
        return
    low, high = operator.valid
    if operator.name == "reciprocal":
        return
    smallest, largest = values.min(initial=0.0), values.max(initial=0.0)
    if operator.name == "sqrt":
        low = 0.0
    if operator.name in {"log", "rsqrt"}:
        smallest = values.min()
    if smallest < low or largest > high:
        bad = float(smallest if smallest < low else largest)
        running().launch.warn(
            "range",
            f"{opcode}: {operator.name} of {bad:g} is outside of the range of the Scalar engine, {low:g} to {high:g}",
        )


def activation_reduce(
    dst: Any,
    op: Any,
    data: Any,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> Record:
    """Compute `op(data * scale + bias)` and the sum of each partition."""
    return activation(dst, op, data, bias, scale, reduce_op, reduce_res, commands.reset_reduce, name)


def activate2(
    dst: Any,
    op: Any,
    data: Any,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    name: str | None = None,
) -> Record:
    """Compute `op((data op0 imm0) op1 imm1)` on the Scalar engine of trn3."""
    opcode = "activate2"
    needs_generation(opcode, GENERATION_4)
    operator = _activation(opcode, op)
    check_elementwise(opcode, dst, data=data)
    pair = (need_operator(opcode, op0, "op0").name, need_operator(opcode, op1, "op1").name)
    if pair not in _ACTIVATE2_PAIRS:
        refuse(
            opcode,
            f"has no combination of op0 {pair[0]} and op1 {pair[1]}",
            "use multiply, add, subtract and bypass",
        )
    values = data.read32("data")
    if pair[0] != "bypass":
        values = apply_scalar(opcode, values, op0, imm0, data, reverse=reverse0, argument="imm0")
    if pair[1] != "bypass":
        values = apply_scalar(opcode, values, op1, imm1, data, reverse=reverse1, argument="imm1")
    if operator.name == "prelu":
        slope = scalar(opcode, "relu_param", relu_param, data)
        values = np.where(values >= 0, values, values * slope)
    else:
        values = np.asarray(operator.compute(values), dtype=np.float32)
    return _finish_activation(
        opcode, dst, values, (data, imm0, imm1), operator, reduce_op, reduce_res, reduce_cmd, name
    )


def exponential(
    dst: Any,
    src: Any,
    max_value: Any = 0.0,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> Record:
    """Compute `exp(src - max_value)` on the Vector engine of trn3, and its sum."""
    opcode = "exponential"
    needs_generation(opcode, GENERATION_4)
    check_elementwise(opcode, dst, src=src)
    values = np.exp(src.read32("src") - scalar(opcode, "max_value", max_value, src))
    dst.write(values)
    start = scalar(opcode, "reduce_init", reduce_init, src).reshape(-1, 1)
    column = accumulate(opcode, "vector", reduce_cmd, OPERATORS["add"], values, start)
    if reduce_res is not None and column is not None:
        reduce_res.write(column)
    return running().issue(opcode, "vector", reads(src, max_value), reads(dst, reduce_res), name)


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
    column = np.full(flat.shape[0], _identity(joins), dtype=np.float32)
    if reduce_cmd is commands.load_reduce:
        column = np.broadcast_to(scalar(opcode, "imm1", imm1, src).reshape(-1), column.shape).astype(
            np.float32
        )
    elif reduce_cmd is commands.reduce:
        column = _continue(opcode, "vector", column[:, None], running().accumulators)[:, 0]
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
    first, second = need_operator(opcode, op0, "op0"), need_operator(opcode, op1, "op1")
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
