"""Transfers between HBM and SBUF: their queues, and the time of descriptors on the DMA engines of a core.

Names of queues have the form of the AWS Neuron documentation (neuron-profile user guide): `qScalarSpillReload0`,
`qSyncDynamicHW`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from neurontools.compiler.engines.instructions import STREAM_PIECES, Instruction, StepOperand
from neurontools.compiler.engines.placement import Engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.compiler.engines.modelled_core import ModelledCore


PLAIN_OPCODE = "DMA_DIRECT2D"
SPILL_OPCODE = "DMA_SPILL_SAVE"
RELOAD_OPCODE = "DMA_SPILL_RELOAD"
INDIRECT_OPCODE = "DMA_INDIRECT"
TRANSPOSE_OPCODE = "DMA_TRANSPOSE"


class DescriptorMode(StrEnum):
    """Who makes the descriptors of a transfer; the values are those of the published metrics."""

    STATIC = "static"
    """The compiler: they lie in HBM before the program starts."""

    SOFTWARE = "software_dynamic"
    """GpSimd, while the program runs."""

    HARDWARE = "hardware_dynamic"
    """The descriptor generation engines of v3 and v4."""


class DmaQueue(NamedTuple):
    """A queue: its name, the type that a NEFF gives it, and who makes its descriptors."""

    name: str
    kind: str
    mode: DescriptorMode


LOADS = DmaQueue("qSyncIO0", "data", DescriptorMode.STATIC)
STORES = DmaQueue("qScalarIO0", "output", DescriptorMode.STATIC)
_QUEUES = {
    SPILL_OPCODE: DmaQueue("qScalarSpillReload0", "data", DescriptorMode.STATIC),
    RELOAD_OPCODE: DmaQueue("qScalarSpillReload0", "data", DescriptorMode.STATIC),
    INDIRECT_OPCODE: DmaQueue("qGpSimdDynamicSW", "software_dynamic", DescriptorMode.SOFTWARE),
    TRANSPOSE_OPCODE: DmaQueue("qSyncDynamicHW", "hardware_dynamic", DescriptorMode.HARDWARE),
}


def queue_of(opcode: str, write_bytes: int) -> DmaQueue:
    """Return the queue of a transfer; loads and stores of tensors have one each."""
    return _QUEUES.get(opcode) or (STORES if write_bytes else LOADS)


def queues_of(transfers: Iterable[tuple[str, int]]) -> list[DmaQueue]:
    """Return the queues of transfers (opcode and bytes written), each once, by name."""
    return sorted({queue_of(*transfer) for transfer in transfers})


_PIECE_BYTES = 128 * 2048  # a tile of 128 partitions whose descriptors nearly reach the plateau
_LARGEST_DESCRIPTOR = 1 << 16
_STREAM_BYTES = 4096


def transfer_ns(machine: ModelledCore, nbytes: int, row_bytes: float) -> float:
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


def transposed_ns(machine: ModelledCore, nbytes: int, row_bytes: float, *, from_hbm: bool = True) -> float:
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
