"""Modelled device time of a kernel: memory accesses of its cores at the rates of `fixtures/gpsimd/rates.yaml`.

docs/explanation/cost-model.md explains the numbers. Arithmetic of the kernel's own loops is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.customop.package import Access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.calls import CoreWork


@dataclass(frozen=True, slots=True)
class TensorOperand:
    """A tensor argument: sizes and the torch name of its dtype."""

    sizes: tuple[int, ...]
    dtype: str


Operand = TensorOperand | float | int | None
"""A tensor, a number, or None for a number that is unknown when a graph is compiled."""

# The documented relu touches input and output three times (AWS Neuron documentation, custom operators performance guide).
ACCESSES_PER_ELEMENT = 1.5


def work_ns(work: Sequence[CoreWork]) -> int:
    """Return the modelled time of a call in nanoseconds: the launch plus its slowest core; 0 for no work."""
    if not work:
        return 0
    return round(gpsimd.rates().launch_ns + max(map(core_ns, work)))


def core_ns(core: CoreWork) -> float:
    """Return the modelled time of one core in nanoseconds."""
    rates = gpsimd.rates()
    return (
        core.element_accesses * rates.element_access_ns
        + (core.transfers * rates.transfer_latency_ns + core.transferred_bytes * rates.transfer_ns_per_byte)
        + (core.moves * rates.move_latency_ns + core.moved_bytes * rates.move_ns_per_byte)
        + compute_ns(core)
    )


def compute_ns(core: CoreWork) -> float:
    """Return the part of `core_ns` for the arithmetic of tensor functions."""
    return core.computed_bytes * gpsimd.rates().compute_ns_per_byte


def analytic_ns(access: Access, numels: Sequence[int], itemsizes: Sequence[int], cores: int) -> int:
    """Return the modelled time of a kernel that never ran, by how it accesses its tensors.

    Args:
        access: how the kernel accesses tensors.
        numels: elements of each input and of the output.
        itemsizes: bytes of an element of each; the last one is used for missing ones, 4 if none is given.
        cores: number of cores that share the work.
    """
    rates = gpsimd.rates()
    if access is Access.ELEMENT:
        return round(rates.launch_ns + sum(numels) * ACCESSES_PER_ELEMENT * rates.element_access_ns / cores)
    sizes = [*itemsizes] or [4]
    sizes += [sizes[-1]] * (len(numels) - len(sizes))
    nbytes = sum(count * size for count, size in zip(numels, sizes, strict=False))
    return round(rates.launch_ns + rates.transfer_ns(-(-nbytes // cores)))
