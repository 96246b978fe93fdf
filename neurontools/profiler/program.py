"""From a NEFF to what a capture needs of it: its pairing hash and its scheduled operations."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from neurontools.profiler.model import Operation, Program

if TYPE_CHECKING:
    from neurontools.compiler.cost import GraphCost


def pairing_hash(neff: bytes) -> str:
    """Return the decimal number that pairs a NEFF with its records, as in the vendor's `neff_<hash>.neff`."""
    return str(int.from_bytes(hashlib.sha256(neff).digest()[:8], "big"))


def program_of_neff(neff: bytes) -> Program:
    """Return the operations of a NEFF as its cost model scheduled them.

    Raises:
        NeffError: the bytes are no NEFF of ours.
    """
    from neurontools.compiler.neff import parse

    return program_of_cost(pairing_hash(neff), parse(neff).cost)


def program_of_cost(neff_hash: str, cost: GraphCost) -> Program:
    """Return the operations of a cost model."""
    operations = tuple(
        Operation(
            name=op.name,
            opcode=op.opcode,
            engine=op.engine.value,
            start_ns=op.start_ns,
            duration_ns=op.duration_ns,
            flops=op.flops,
            read_bytes=op.read_bytes,
            write_bytes=op.write_bytes,
            shape=op.shape,
            source=op.source,
        )
        for op in cost.ops
    )
    return Program(neff_hash, cost.total_ns, operations)
