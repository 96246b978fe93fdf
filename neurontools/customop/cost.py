"""Modelled device time of a kernel: what its cores did, at the rates of `fixtures/gpsimd/rates.yaml`.

docs/explanation/cost-model.md says how the numbers come about; `call_times.py` asks here for the operators of a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.customop.manifest import Access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.calls import CoreWork


@dataclass(frozen=True, slots=True)
class TensorOperand:
    """A tensor that an operator is called with: sizes and the name of its dtype in torch."""

    sizes: tuple[int, ...]
    dtype: str


Operand = TensorOperand | float | int | None
"""A tensor, a number, or None for a number that is not known when a graph is compiled."""

# The documented relu touches input and output three times (customops.md section 11).
ACCESSES_PER_ELEMENT = 1.5


def work_ns(work: Sequence[CoreWork]) -> int:
    """Return the modelled time of a call in nanoseconds: the launch and its slowest core; 0 for no work."""
    if not work:
        return 0
    return round(gpsimd.rates().launch_ns + max(map(core_ns, work)))


def core_ns(core: CoreWork) -> float:
    """Return the modelled time of what one core did, in nanoseconds."""
    return element_ns(core) + transfer_ns(core) + move_ns(core) + compute_ns(core)


def element_ns(core: CoreWork) -> float:
    """Return the part of `core_ns` for accesses to elements in HBM."""
    return core.element_accesses * gpsimd.rates().element_access_ns


def transfer_ns(core: CoreWork) -> float:
    """Return the part of `core_ns` for transfers between HBM and TCM."""
    rates = gpsimd.rates()
    return core.transfers * rates.transfer_latency_ns + core.transferred_bytes * rates.transfer_ns_per_byte


def move_ns(core: CoreWork) -> float:
    """Return the part of `core_ns` for copies within HBM and fills."""
    rates = gpsimd.rates()
    return core.moves * rates.move_latency_ns + core.moved_bytes * rates.move_ns_per_byte


def compute_ns(core: CoreWork) -> float:
    """Return the part of `core_ns` for the arithmetic of tensor functions."""
    return core.computed_bytes * gpsimd.rates().compute_ns_per_byte


def analytic_ns(access: Access, numels: Sequence[int], itemsizes: Sequence[int], cores: int) -> int:
    """Return the modelled time of a kernel that was never run, by how it reaches its tensors.

    Args:
        access: how the kernel reaches tensors.
        numels: elements of each input and of the output.
        itemsizes: bytes of an element of each; the last one stands for those that are missing, 4 when none is given.
        cores: how many cores share the work.
    """
    rates = gpsimd.rates()
    if access is Access.ELEMENT:
        return round(rates.launch_ns + sum(numels) * ACCESSES_PER_ELEMENT * rates.element_access_ns / cores)
    sizes = [*itemsizes] or [4]
    sizes += [sizes[-1]] * (len(numels) - len(sizes))
    nbytes = sum(count * size for count, size in zip(numels, sizes, strict=False))
    return round(rates.launch_ns + rates.transfer_ns(-(-nbytes // cores)))
