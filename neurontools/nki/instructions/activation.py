"""Instructions with activation functions, and the sums of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.constants import reduce_cmd as commands
from neurontools.nki.context import Record, running
from neurontools.nki.instructions.accumulators import accumulate
from neurontools.nki.instructions.arithmetic import apply_scalar
from neurontools.nki.instructions.operands import (
    GENERATION_3,
    GENERATION_4,
    check_elementwise,
    check_reduction,
    check_tile,
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


_ACTIVATE2_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)


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
    check_reduction(opcode, joins)
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
    operator = need_operator(opcode, op, functions=ACTIVATIONS)
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
