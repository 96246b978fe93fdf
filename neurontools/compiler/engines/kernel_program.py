"""The instructions of a kernel on a core as a NEFF keeps them: the calls of its operator become them.

A kernel starts when all engines have ended what was before it, and what comes after waits for its end. So its schedule is
the same alone and in a model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools.base.json_reader import load_json
from neurontools.compiler.engines.cost import MAX_NS, MAX_WORK, CostError, checked
from neurontools.compiler.engines.instructions import CoreProgram, Instruction, Step
from neurontools.compiler.engines.placement import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = 1
NAMESPACE = "nki"
"""Namespace of the operators that stand for kernels."""

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

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        kinds: dict[tuple[str, str, str], int] = {}
        rows = [
            (
                kinds.setdefault((each.engine.value, each.opcode, each.source), len(kinds)),
                each.tile_ns,
                each.scalar_ns,
                each.reads,
                each.flops,
                each.read_bytes,
                each.write_bytes,
                *facts,
            )
            for each, facts in zip(self.instructions, self.facts, strict=True)
        ]
        stored = {
            "schema": SCHEMA,
            "kinds": list(kinds),
            "columns": list(zip(*rows, strict=True)),
            "sbuf": self.sbuf,
            "psum": self.psum,
        }
        return json.dumps(stored, separators=(",", ":")).encode()


CustomWork = int | KernelProgram
"""What a call of an operator that the compiler does not know does: nanoseconds on GpSimd, or the kernel that it is."""


def kernel_from_bytes(data: bytes) -> KernelProgram:
    """Return the kernel that `to_bytes` stored.

    Raises:
        CostError: the bytes are damaged, or of another schema.
    """
    try:
        stored = load_json(data, any_text=True)
        if stored["schema"] != SCHEMA:
            raise CostError(f"kernel schema {stored['schema']} is not supported (supported: {SCHEMA})")
        kinds = [(Engine(engine), str(opcode), str(source)) for engine, opcode, source in stored["kinds"]]
        rows = list(zip(*stored["columns"], strict=True))
        instructions = tuple(_instruction(kinds, number, row) for number, row in enumerate(rows))
        facts = tuple(_facts(number, row[7:]) for number, row in enumerate(rows))
        levels = [_levels(stored[name], len(rows)) for name in ("sbuf", "psum")]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise CostError(f"not a kernel: {type(error).__name__}: {error}") from error
    return KernelProgram(instructions, facts, *levels)


def _instruction(kinds: Sequence[tuple[Engine, str, str]], number: int, row: tuple[Any, ...]) -> Instruction:
    kind, time_ns, scalar_ns, waits, flops, read, write = row[:7]
    engine, opcode, source = kinds[checked(kind, len(kinds))]
    return Instruction(
        engine,
        opcode,
        1,
        _time(time_ns),
        _earlier(waits, number),
        (number,),
        flops=checked(flops, MAX_WORK),
        scalar_ns=_time(scalar_ns) if scalar_ns >= 0 else -1.0,
        read_bytes=checked(read, MAX_WORK),
        write_bytes=checked(write, MAX_WORK),
        source=source,
    )


def _facts(number: int, row: tuple[Any, ...]) -> InstructionFacts:
    call, partitions, row_bytes, tensor, offset, is_scratch, bank_waits, could_ns = row
    return InstructionFacts(
        checked(call, MAX_WORK),
        checked(partitions, MAX_WORK),
        checked(row_bytes, MAX_WORK),
        checked(tensor + 1, MAX_WORK) - 1,
        checked(offset, MAX_WORK),
        bool(is_scratch),
        _earlier(bank_waits, number),
        _time(could_ns) if could_ns >= 0 else -1.0,
    )


def _earlier(numbers: Sequence[int], number: int) -> tuple[int, ...]:
    return tuple(checked(each, number - 1) for each in numbers)


def _time(value: float) -> float:
    if not isfinite(value) or not 0 <= value <= MAX_NS:
        raise ValueError(f"a time is out of range: {value!r}")
    return float(value)


def _levels(stored: Sequence[Sequence[int]], count: int) -> Levels:
    return tuple((checked(number, count), checked(used, MAX_WORK)) for number, used in stored)
