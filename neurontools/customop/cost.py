"""Modelled device time of a kernel: what its cores did to memory, at rates calibrated from documented figures.

customops.md section 11: one core moves 1.67 GB/s between HBM and TCM (0.6 ns a byte, in transfers of 4 KiB), an element
access takes about 200 ns, eight cores work in parallel. The latency of a transfer is our decision; the rate beside it
is chosen so that a transfer of 4 KiB takes what the documented figures give.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from neurontools.customop.manifest import Access, OperatorEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.calls import CoreWork

ELEMENT_ACCESS_NS = 200.0
DOCUMENTED_NS_PER_BYTE = 0.6
TRANSFER_BYTES = 4096
TRANSFER_LATENCY_NS = 500.0
NS_PER_BYTE = DOCUMENTED_NS_PER_BYTE - TRANSFER_LATENCY_NS / TRANSFER_BYTES
ACCESSES_PER_ELEMENT = 1.5  # a relu touches input and output three times for two tensors' elements
GPSIMD_CORES = 8

_lock = threading.Lock()
_operators: dict[str, tuple[OperatorEntry, int]] = {}
_seen: dict[tuple[str, tuple[int, ...]], int] = {}
_SEEN_MAX = 4096


def work_ns(work: Sequence[CoreWork]) -> int:
    """Return the modelled time of a call in nanoseconds: that of its slowest core."""
    return max((round(_core_ns(core)) for core in work), default=0)


def analytic_ns(access: Access, numels: Sequence[int], itemsizes: Sequence[int], cores: int) -> int:
    """Return the modelled time of a kernel that was never run, by how it reaches its tensors.

    Args:
        access: how the kernel reaches tensors.
        numels: elements of each input and of the output.
        itemsizes: bytes of an element of each; the last one stands for those that are missing, 4 when none is given.
        cores: how many cores share the work.
    """
    if access is Access.ELEMENT:
        return round(sum(numels) * ACCESSES_PER_ELEMENT * ELEMENT_ACCESS_NS / cores)
    sizes = [*itemsizes] or [4]
    sizes += [sizes[-1]] * (len(numels) - len(sizes))
    nbytes = sum(count * size for count, size in zip(numels, sizes, strict=False))
    return round(nbytes * DOCUMENTED_NS_PER_BYTE / cores)


def modelled_ns(op_qualname: str, numels: Sequence[int], itemsizes: Sequence[int] = ()) -> int:
    """Return the modelled device time of an operator in nanoseconds.

    What a run with the same numbers of elements did decides; before the first run the kernel's source does.

    Args:
        op_qualname: `library::operator`.
        numels: elements of each input tensor and of the output.
        itemsizes: bytes of an element of each, 4 when not given.

    Returns:
        The time, 0 for an operator that is in no loaded library.
    """
    with _lock:
        seen = _seen.get((op_qualname, tuple(numels)))
        known = _operators.get(op_qualname)
    if seen is not None:
        return seen
    if known is None:
        return 0
    entry, cores = known
    return analytic_ns(entry.access, numels, itemsizes, cores)


def remember_operator(entry: OperatorEntry, *, multicore: bool) -> None:
    """Make an operator of a loaded library known; what an older library of that name did is forgotten."""
    with _lock:
        _operators[entry.qualified] = (entry, GPSIMD_CORES if multicore else 1)
        for key in [key for key in _seen if key[0] == entry.qualified]:
            del _seen[key]


def remember_run(op_qualname: str, numels: Sequence[int], work: Sequence[CoreWork]) -> None:
    """Keep what a run did, for the next question about the same numbers of elements."""
    with _lock:
        if len(_seen) >= _SEEN_MAX:
            _seen.clear()
        _seen[op_qualname, tuple(numels)] = work_ns(work)


def _renew_lock() -> None:
    # A thread that the forked child does not have may have held it.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _core_ns(core: CoreWork) -> float:
    return (
        core.element_accesses * ELEMENT_ACCESS_NS
        + core.transfers * TRANSFER_LATENCY_NS
        + core.transferred_bytes * NS_PER_BYTE
    )
