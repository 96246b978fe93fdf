"""The accumulator registers of the Scalar and the Vector engine, which keep sums between instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.constants import reduce_cmd as commands
from neurontools.nki.context import running
from neurontools.nki.instructions.arithmetic import binary, reduce_axis

if TYPE_CHECKING:
    from neurontools.nki.operators import MathOperator


def identity_of(operator: MathOperator) -> float:
    """Return what a reduction by an operator starts with."""
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
    column = np.full((values.shape[0], 1), identity_of(operator), dtype=np.float32)
    if command is commands.load_reduce:
        column = np.broadcast_to(np.asarray(start, dtype=np.float32), column.shape).copy()
    elif command is commands.reduce:
        column = continue_reduction(opcode, unit, column, registers)
    if command is not commands.reset:
        flat = values.reshape(values.shape[0], -1)
        reduced = reduce_axis(operator, flat, 1)[:, None]
        column = binary(operator, column, reduced) if operator.name != "subtract" else column - reduced
    registers[unit] = column
    registers[unit, "owner"] = opcode
    return column


def continue_reduction(opcode: str, unit: str, column: np.ndarray, registers: dict[Any, Any]) -> np.ndarray:
    """Return the registers that a reduction continues; warn if none has started or another instruction used them."""
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
