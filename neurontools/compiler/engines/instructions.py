"""What lowering makes of a graph: buffers, instructions of the engines, and the steps that they belong to.

A program does not know the graph. A kernel language can make one too: everything after lowering (SBUF, DMA, schedule)
works on programs alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from neurontools.compiler.engines.placement import Engine


STREAM_PIECES = 32
"""Pieces of work that may be cut anywhere: how finely neighbours that stream overlap."""


class StepOperand(NamedTuple):
    """A part of a buffer in HBM that a step needs or makes.

    Args:
        buffer: its number.
        nbytes: bytes that are moved where the buffer is not in SBUF.
        row_bytes: contiguous bytes of one DMA descriptor, the mean where they differ.
        is_transposed: whether the transfer to SBUF transposes it.
    """

    buffer: int
    nbytes: int
    row_bytes: float
    is_transposed: bool = False


@dataclass(slots=True)
class Instruction:
    """Equal tiles of work on one engine.

    Args:
        engine: the queue that it waits in.
        opcode: its name.
        count: number of tiles, 0 for no work.
        tile_ns: time of one.
        reads: buffers that it reads; numbers below 0 are values on the chip, between instructions of one step.
        writes: buffers that it writes.
        pieces: independent parts in which operands are needed and results become available.
        flops: floating-point operations of the operator that it stands for.
        scalar_ns: time of a tile on the Scalar engine, for work that may run there too; negative if it may not.
        read_bytes: bytes read from HBM, of transfers.
        write_bytes: bytes written to HBM, of transfers.
        turning: how many of the tiles transpose operands, between the others.
        turning_ns: time of those together.
        psum_elements: float32 numbers a partition that it leaves in PSUM.
        source: line of the kernel that issues it, "" for instructions of operators.
    """

    engine: Engine
    opcode: str
    count: int
    tile_ns: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    pieces: int = 1
    flops: int = 0
    scalar_ns: float = -1.0
    read_bytes: int = 0
    write_bytes: int = 0
    turning: int = 0
    turning_ns: float = 0.0
    psum_elements: float = 0
    source: str = ""


Levels = tuple[tuple[int, int], ...]
"""Numbers of instructions, each with what is in use from it on."""


class InstructionFacts(NamedTuple):
    """What is known of an instruction besides its time.

    Args:
        call: number of the call in the kernel that it belongs to.
        partitions: of the chip that it works on; 0 for descriptors and registers.
        row_bytes: contiguous bytes of a transfer's descriptors, else 0.
        tensor: number of the tensor in HBM that a transfer reads or writes, else -1.
        offset: byte of that tensor at which the transfer begins.
        is_scratch: whether only the kernel can see that tensor.
        bank_waits: those of its waits that are only for memory in PSUM.
        could_ns: how long the Scalar engine would take for an instruction of the Vector engine; negative if it cannot.
    """

    call: int
    partitions: int = 0
    row_bytes: int = 0
    tensor: int = -1
    offset: int = 0
    is_scratch: bool = False
    bank_waits: tuple[int, ...] = ()
    could_ns: float = -1.0


@dataclass(frozen=True, eq=False)
class KernelProgram:
    """A kernel on one core.

    Args:
        instructions: in program order; each writes its own number and reads those of the instructions that it waits for.
        facts: of each instruction.
        sbuf: bytes of SBUF in use.
        psum: banks of PSUM in use.
    """

    instructions: tuple[Instruction, ...]
    facts: tuple[InstructionFacts, ...]
    sbuf: Levels = ()
    psum: Levels = ()

    def alone(self) -> CoreProgram:
        """Return the program of a core that runs the kernel and nothing else."""
        return CoreProgram([Step(0, list(self.instructions))], frozenset(), frozenset())


CustomWork = int | KernelProgram
"""What a call of an operator that the compiler does not know does: nanoseconds on GpSimd, or the kernel that it is."""


@dataclass(slots=True)
class Step:
    """The instructions of one operator.

    Args:
        operator: its position in the graph.
        instructions: in program order.
        reads: what must be in SBUF.
        writes: what it makes.
        streams: whether it works tile by tile, so that neighbours pass values on without keeping them whole.
        is_known: False where a fallback described the operator.
        in_hbm: whether it reads and writes HBM itself, so that operands are stored before it and results are there.
        kernel: instructions of a kernel that run in place of `instructions`.
    """

    operator: int
    instructions: list[Instruction] = field(default_factory=list)
    reads: list[StepOperand] = field(default_factory=list)
    writes: list[StepOperand] = field(default_factory=list)
    streams: bool = False
    is_known: bool = True
    in_hbm: bool = False
    kernel: KernelProgram | None = None


@dataclass(slots=True)
class CoreProgram:
    """Steps in program order, and which buffers hold data before and after them."""

    steps: list[Step]
    inputs: frozenset[int]
    outputs: frozenset[int]
