"""Dependences between the iterations of `affine_range` loops, exact to the element.

An iteration must not read what another has written, nor overwrite what is read after the loop. Sums are allowed: the order
of an associative operator's operands does not matter. The pass over boxes of `dataflow` finds the tensors to look at.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from neurontools.nki.dtypes import item_bytes
from neurontools.nki.iterations import AffineLoop, separating_loop
from neurontools.nki.memory import ON_CHIP

if TYPE_CHECKING:
    from neurontools.nki.context import Core, ElementAccess, Record
    from neurontools.nki.iterations import Iteration
    from neurontools.nki.memory import Allocation

PRODUCTS = frozenset({"nc_matmul", "nc_matmul_mx"})
_ASSOCIATIVE = frozenset(
    {"add", "subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor"}
    | {"bitwise_and", "bitwise_or", "bitwise_xor"}
)


def adds_up(record: Record, access: ElementAccess) -> bool:
    """Return whether an instruction joins values to those of its destination, in any order."""
    options = record.options
    if record.opcode in PRODUCTS:
        return options.get("accumulate") is not False
    if options.get("accumulates"):
        return True
    operators = {options.get("op"), options.get("op1")} - {None, ""}
    places = [read[:4] == access[:4] for read in record.reads]
    if record.opcode == "scalar_tensor_tensor" and not places[0]:
        operators = {options["op1"]}
    return any(places) and len(operators) == 1 and operators <= _ASSOCIATIVE


class _Overwriting(NamedTuple):
    loop: AffineLoop
    before: Record
    record: Record


class _Elements:
    """The last write of each element of a tensor, by numbers of a list.

    Args:
        allocation: the tensor.
        unit: bytes of an element here, which divide those of all accesses.
    """

    def __init__(self, allocation: Allocation, unit: int) -> None:
        self.unit = unit
        self.count = prod(allocation.shape) * item_bytes(allocation.dtype) // unit

    def numbers(self) -> np.ndarray:
        """Return -1 for each element."""
        return np.full(self.count, -1, np.int32)

    def part(self, numbers: np.ndarray, access: ElementAccess) -> np.ndarray:
        """Return the numbers of the elements of an access as a view."""
        ratio, item = item_bytes(access.dtype) // self.unit, numbers.itemsize
        if access.elements is not None:
            return numbers.reshape(-1, ratio)[access.elements]
        shape, strides = (*access.shape, ratio), (*[stride * ratio * item for stride in access.strides], item)
        return np.ndarray(shape, numbers.dtype, numbers, access.offset * ratio * item, strides)

    def fill(self, numbers: np.ndarray, access: ElementAccess, value: Any) -> None:
        """Set the numbers of the elements of an access."""
        if access.elements is None:
            self.part(numbers, access)[...] = value
        else:
            ratio = item_bytes(access.dtype) // self.unit
            numbers.reshape(-1, ratio)[access.elements] = value


class _Tracer:
    def __init__(self, core: Core, allocation: Allocation, unit: int) -> None:
        self.launch = core.launch
        self.allocation = allocation
        self.elements = _Elements(allocation, unit)
        self.writers = self.elements.numbers()
        self.overwritten = self.elements.numbers()
        self.writes: list[tuple[Record, Iteration | None]] = []
        self.overwritings: list[_Overwriting] = []

    def _distinct(self, numbers: np.ndarray, access: ElementAccess) -> list[int]:
        part = self.elements.part(numbers, access)
        low = int(part.min()) if part.size else -1
        if not part.size or low == int(part.max()):
            return [low] if low >= 0 else []
        return [int(number) for number in np.unique(part) if number >= 0]

    def read(self, record: Record, access: ElementAccess, iteration: Iteration | None) -> None:
        for number in self._distinct(self.writers, access):
            before, started = self.writes[number]
            loop = separating_loop(started, iteration)
            if loop is not None:
                self._warn(loop, before, record, "reads")
        for number in self._distinct(self.overwritten, access):
            event = self.overwritings[number]
            if iteration is None or not iteration.is_within(event.loop):
                self._warn(event.loop, event.before, event.record, "overwrites")

    def write(
        self, record: Record, access: ElementAccess, iteration: Iteration | None, *, adds: bool
    ) -> None:
        started, event = iteration, -1
        for number in self._distinct(self.writers, access):
            before, other = self.writes[number]
            loop = separating_loop(other, iteration)
            if loop is None:
                continue
            if adds:
                started = other
            elif self.launch.first_generation:
                # Each iteration must write to a different place there; in the second, it may use one as a scratch.
                self._warn(loop, before, record, "overwrites")
            elif not _is_same_value(before, record):
                event = len(self.overwritings)
                self.overwritings.append(_Overwriting(loop, before, record))
        self.elements.fill(self.writers, access, len(self.writes))
        self.elements.fill(self.overwritten, access, event)
        self.writes.append((record, started))

    def end(self) -> None:
        """Take what is left in HBM as read after the kernel."""
        if self.allocation.region not in ON_CHIP:
            for number in np.unique(self.overwritten):
                if number >= 0:
                    event = self.overwritings[int(number)]
                    self._warn(event.loop, event.before, event.record, "overwrites")

    def _warn(self, loop: AffineLoop, before: Record, record: Record, does: str) -> None:
        label = self.allocation.label
        self.launch.warn(
            "carried",
            f"affine_range: the iterations of this loop depend on each other: {before.opcode} at {before.location} writes "
            f"{label}, and {record.opcode} at {record.location} {does} it in another iteration; "
            f"use nl.sequential_range, or a tensor of its own for each iteration",
            loop.location,
        )


def _is_same_value(first: Record, second: Record) -> bool:
    digest = first.options.get("digest")
    return digest is not None and digest == second.options.get("digest")


def check_dependences(core: Core, allocations: set[Allocation]) -> None:
    """Warn of dependences between iterations through tensors."""
    used: dict[Allocation, int] = {}
    for record in core.records:
        for access in (*record.reads, *record.writes):
            if access.allocation in allocations:
                used[access.allocation] = min(used.get(access.allocation, 8), item_bytes(access.dtype))
    tracers = {
        allocation: _Tracer(core, allocation, min(unit, item_bytes(allocation.dtype)))
        for allocation, unit in used.items()
    }
    for iteration, records in core.by_iteration():
        for record in records:
            adding = {
                access.allocation
                for access in record.writes
                if access.allocation in tracers and adds_up(record, access)
            }
            for access in record.reads:
                tracer = tracers.get(access.allocation)
                if tracer is not None and access.allocation not in adding:
                    tracer.read(record, access, iteration)
            for access in record.writes:
                tracer = tracers.get(access.allocation)
                if tracer is not None:
                    tracer.write(record, access, iteration, adds=access.allocation in adding)
    for tracer in tracers.values():
        tracer.end()
