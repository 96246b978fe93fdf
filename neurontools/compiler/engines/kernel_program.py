"""The instructions of a kernel on a core as a NEFF keeps them: the calls of its operator become them.

A kernel starts when all engines have ended what was before it, and what comes after waits for its end. So its schedule is
the same alone and in a model.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from neurontools.base.json_reader import load_json
from neurontools.compiler.engines.cost import MAX_NS, MAX_WORK, CostError, checked
from neurontools.compiler.engines.instructions import Instruction, InstructionFacts, KernelProgram, Levels
from neurontools.compiler.engines.placement import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = 1
NAMESPACE = "nki"
"""Namespace of the operators that stand for kernels."""


def kernel_to_bytes(kernel: KernelProgram) -> bytes:
    """Return the stored form of a kernel."""
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
        for each, facts in zip(kernel.instructions, kernel.facts, strict=True)
    ]
    stored = {
        "schema": SCHEMA,
        "kinds": list(kinds),
        "columns": list(zip(*rows, strict=True)),
        "sbuf": kernel.sbuf,
        "psum": kernel.psum,
    }
    return json.dumps(stored, separators=(",", ":")).encode()


def kernel_from_bytes(data: bytes) -> KernelProgram:
    """Return the kernel that `kernel_to_bytes` stored.

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
