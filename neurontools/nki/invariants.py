"""Instructions that loops repeat with the same inputs: the compiler of the first generation runs them once.

No document says which instructions it moves out of loops. The published times of the Mamba kernels (fused_mamba.rst)
agree with one product of two tensors for all states, where the kernel has one for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neurontools.nki.memory import ON_CHIP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.nki.context import Record
    from neurontools.nki.memory import Allocation

_WITHOUT_STATE = frozenset(
    [
        "activation",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_reduce",
        "tensor_scalar",
        "tensor_tensor",
        "tensor_tensor_scan",
    ]
)


class Repetitions(NamedTuple):
    """Instructions that need not run.

    Args:
        numbers: their numbers.
        earlier: by the tensor that one of them writes the tensor that holds the same values already.
    """

    numbers: frozenset[int]
    earlier: dict[Allocation, Allocation]


def repetitions(records: Sequence[Record]) -> Repetitions:
    """Return the instructions that give again what the same line has given, in tensors of the chip that last.

    Args:
        records: the instructions of a core, in order.
    """
    writes: dict[Allocation, int] = {}
    for record in records:
        for access in record.writes:
            writes[access.allocation] = writes.get(access.allocation, 0) + 1
    written: dict[Allocation, int] = {}
    made: dict[tuple[object, ...], Allocation] = {}
    earlier: dict[Allocation, Allocation] = {}
    numbers = set()
    for number, record in enumerate(records):
        if _is_pure(record) and writes[record.writes[0].allocation] == 1:
            result = record.writes[0].allocation
            inputs = [
                (
                    earlier.get(access.allocation, access.allocation),
                    written.get(access.allocation, 0),
                    *access[1:5],
                )
                for access in record.reads
            ]
            options = sorted(record.options.items(), key=str)
            key = (record.opcode, record.location, repr(options), record.writes[0][1:5], *inputs)
            if key in made:
                numbers.add(number)
                earlier[result] = made[key]
                continue
            made[key] = result
        for access in record.writes:
            written[access.allocation] = written.get(access.allocation, 0) + 1
    return Repetitions(frozenset(numbers), earlier)


def _is_pure(record: Record) -> bool:
    """Return whether an instruction's results depend on the tensors of the chip alone that it names."""
    accesses = (*record.reads, *record.writes)
    return (
        record.opcode in _WITHOUT_STATE
        and len(record.writes) == 1
        and not record.after
        and all(access.allocation.region in ON_CHIP and access.elements is None for access in accesses)
    )
