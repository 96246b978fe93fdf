"""Transfers between HBM and SBUF: the time of descriptors on the DMA engines of a core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.instructions import STREAM_PIECES, Instruction
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.engines.queues import PLAIN_OPCODE, RELOAD_OPCODE, SPILL_OPCODE, TRANSPOSE_OPCODE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.engines.instructions import StepOperand
    from neurontools.compiler.engines.modelled_core import ModelledCore

_PIECE_BYTES = 128 * 2048  # a tile of 128 partitions whose descriptors nearly reach the plateau
_LARGEST_DESCRIPTOR = 1 << 16
_STREAM_BYTES = 4096


def transfer_ns(machine: ModelledCore, nbytes: int, row_bytes: int) -> float:
    """Return the time that the DMA engines together spend on a transfer; a small one keeps one engine waiting.

    Args:
        machine: the core.
        nbytes: bytes of the transfer.
        row_bytes: contiguous bytes of a descriptor; small ones take as long as `dma_smallest_bytes`.
    """
    if nbytes <= 0:
        return 0.0
    costs = machine.costs
    row = min(max(row_bytes, 1), nbytes, _LARGEST_DESCRIPTOR)
    descriptors = -(-nbytes // row) if row > _STREAM_BYTES else nbytes / row
    moving_ns = (
        descriptors * max(row + costs.dma_overhead_bytes, costs.dma_smallest_bytes) / machine.dma_bytes_ns
    )
    return max(moving_ns, costs.dma_latency_ns / (costs.dma_engines * machine.lnc))


def transposed_ns(machine: ModelledCore, nbytes: int, row_bytes: int, *, from_hbm: bool = True) -> float:
    """Return the time of a transfer that transposes: slower, and each instruction makes its descriptors (v3, v4)."""
    costs = machine.costs
    share = costs.dma_transpose_share if from_hbm else costs.dma_transpose_sbuf_share
    making_ns = _pieces(nbytes) * costs.hardware_dge_ns / (costs.hardware_dge_engines * machine.lnc)
    return max(transfer_ns(machine, nbytes, row_bytes) / share, making_ns)


def load(
    machine: ModelledCore,
    operands: Sequence[StepOperand],
    *,
    is_reload: bool = False,
    is_transposed: bool = False,
) -> Instruction:
    """Return the transfer of operands from HBM to SBUF."""
    opcode = RELOAD_OPCODE if is_reload else TRANSPOSE_OPCODE if is_transposed else PLAIN_OPCODE
    return _transfer(machine, operands, opcode, is_load=True)


def store(machine: ModelledCore, operands: Sequence[StepOperand], *, is_spill: bool = False) -> Instruction:
    """Return the transfer of operands from SBUF to HBM."""
    return _transfer(machine, operands, SPILL_OPCODE if is_spill else PLAIN_OPCODE, is_load=False)


def _transfer(
    machine: ModelledCore, operands: Sequence[StepOperand], opcode: str, *, is_load: bool
) -> Instruction:
    nbytes = sum(operand.nbytes for operand in operands)
    spent = transposed_ns if opcode == TRANSPOSE_OPCODE else transfer_ns
    time_ns = sum(spent(machine, operand.nbytes, operand.row_bytes) for operand in operands)
    count = _pieces(nbytes)
    buffers = tuple(operand.buffer for operand in operands)
    return Instruction(
        Engine.DMA,
        opcode,
        count,
        time_ns / count,
        () if is_load else buffers,
        buffers if is_load else (),
        pieces=STREAM_PIECES,
        read_bytes=nbytes if is_load else 0,
        write_bytes=0 if is_load else nbytes,
    )


def _pieces(nbytes: int) -> int:
    """Return the instructions of a transfer."""
    return max(1, -(-nbytes // _PIECE_BYTES))
