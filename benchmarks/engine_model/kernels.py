"""Kernels of the NKI guides as programs of instructions: what a kernel language hands to SBUF, DMA and schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.instructions import CoreProgram, Instruction, Step, StepOperand
from neurontools.compiler.engines.placement import Engine

if TYPE_CHECKING:
    from neurontools.compiler.engines.modelled_core import ModelledCore

_DELTA, _U, _B, _C, _OUT = range(5)


def mamba(
    core: ModelledCore,
    *,
    channels: int,
    length: int,
    states: int = 16,
    channels_outside: bool,
    longest: int = 512,
) -> CoreProgram:
    """The selective scan of Mamba in float32, as general/nki/tutorials/fused_mamba.rst builds it up.

    Args:
        core: whose cycles count.
        channels: of the input; 128 make a tile.
        length: of the sequence, along a partition.
        states: of a channel.
        channels_outside: whether all states of a tile follow each other (version 2), so that the product of delta and u
            is made once a tile and both are loaded once; otherwise all tiles of a state do (version 1).
        longest: elements of a partition that one instruction takes (version 3 cuts longer sequences).
    """
    tiles = channels // core.costs.partitions
    tile = core.costs.partitions * length * 4
    outer, inner = (tiles, states) if channels_outside else (states, tiles)
    steps = []
    for number in range(outer):
        step = Step(number)
        whole = 1 if channels_outside else tiles
        first = 5 + 3 * number if channels_outside else 0
        buffers = (first + _DELTA, first + _U, first + _OUT) if channels_outside else (_DELTA, _U, _OUT)
        step.reads = [StepOperand(buffer, whole * tile, length * 4) for buffer in buffers[:2]]
        cuts = -(-length // longest)
        step.instructions = _tile(
            core, length // cuts, inner * cuts, buffers, cuts if channels_outside else 0
        )
        step.writes = [StepOperand(buffers[2], whole * tile, length * 4)]
        steps.append(step)
    inputs = frozenset(operand.buffer for step in steps for operand in step.reads)
    return CoreProgram(steps, inputs, frozenset(step.writes[0].buffer for step in steps))


def _tile(
    core: ModelledCore, length: int, count: int, buffers: tuple[int, int, int], shared: int
) -> list[Instruction]:
    """Return the instructions of tiles; `shared` counts the products of delta and u if states share them."""
    costs = core.costs
    delta, u, out = buffers

    def work(
        engine: Engine, opcode: str, cycles: float, reads: tuple[int, ...], target: int, times: int = count
    ) -> Instruction:
        spent = (cycles + costs.access_cycles) * core.cycle_ns[engine]
        return Instruction(engine, opcode, times, spent, reads, (target,), pieces=times)

    pair, mixed = costs.tensor_tensor * length, costs.tensor_tensor_psum * length
    decay, scaled, driven, scanned, read = -1, -2, -3, -4, -5
    rows, columns = -6, -7
    return [
        work(Engine.SCALAR, "ACTIVATE", length, (delta,), decay),
        work(Engine.VECTOR, "TENSOR_TENSOR", pair, (delta, u), scaled, shared or count),
        work(Engine.TENSOR, "MATMUL", length, (), rows),
        work(Engine.VECTOR, "TENSOR_TENSOR", mixed, (scaled, rows), driven),
        work(Engine.VECTOR, "TENSOR_TENSOR_SCAN", pair, (decay, driven), scanned),
        work(Engine.TENSOR, "MATMUL", length, (), columns),
        work(Engine.VECTOR, "TENSOR_TENSOR", mixed, (scanned, columns), read),
        work(Engine.VECTOR, "TENSOR_TENSOR", pair, (read,), out),
    ]


KERNELS = {"mamba": mamba}
