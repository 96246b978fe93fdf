"""Races between the two cores of a launch: bytes of shared HBM that both touch between barriers, one of them writing.

A barrier or an exchange ends an epoch of both cores. Within one, nothing orders the cores. Where both write the same
values to the same elements, the order does not matter: kernels do so to save a barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neurontools.nki.memory import MemoryRegion
from neurontools.nki.regions import box_of, byte_numbers

if TYPE_CHECKING:
    from neurontools.nki.context import Core, ElementAccess, Launch, Record
    from neurontools.nki.memory import Allocation
    from neurontools.nki.regions import Box

_SHARED = (MemoryRegion.shared_hbm, MemoryRegion.hbm)
_KIND = "race"


class _Touch(NamedTuple):
    access: ElementAccess
    box: Box
    record: Record
    is_write: bool
    number: int

    @property
    def content(self) -> tuple[object, ...] | None:
        """Where it writes and a checksum of what, None for a read or unknown content."""
        digest = self.record.options.get("digest") if self.is_write else None
        return None if digest is None else (self.access[1:5], digest)


_Epoch = dict[tuple["Allocation", int], list[_Touch]]


def check_races(launch: Launch) -> None:
    """Warn of each pair of lines whose accesses to shared HBM race."""
    if len(launch.cores) < 2:
        return
    first, second = (_touches(core) for core in launch.cores[:2])
    for key, own in first.items():
        other = second.get(key)
        if other is not None and any(touch.is_write for touch in (*own, *other)):
            _compare(launch, key[0], own, other)


def _touches(core: Core) -> _Epoch:
    """Return the accesses of a core to shared HBM by allocation and epoch, equal ones once."""
    touches: _Epoch = {}
    seen: set[tuple[object, ...]] = set()
    epoch = 0
    for number, record in enumerate(core.records):
        for accesses, is_write in ((record.reads, False), (record.writes, True)):
            for access in accesses:
                allocation = access.allocation
                if allocation.region not in _SHARED:
                    continue
                box = box_of(access)
                pattern = (
                    allocation,
                    epoch,
                    is_write,
                    record.location,
                    access[1:5],
                    record.options.get("digest"),
                )
                if access.elements is None:
                    if pattern in seen:
                        continue
                    seen.add(pattern)
                touches.setdefault((allocation, epoch), []).append(
                    _Touch(access, box, record, is_write, number)
                )
        if record.options.get("barrier"):
            epoch += 1
    return touches


def _compare(launch: Launch, allocation: Allocation, own: list[_Touch], other: list[_Touch]) -> None:
    low = np.array([touch.box.low for touch in other])
    high = np.array([touch.box.high for touch in other])
    reported: set[tuple[object, object]] = set()
    own_content, other_content = _first_writes(own), _first_writes(other)
    for touch in own:
        hits = (low < touch.box.high).all(axis=1) & (high > touch.box.low).all(axis=1)
        for number in np.flatnonzero(hits):
            against = other[int(number)]
            lines = (touch.record.location, against.record.location)
            if not (touch.is_write or against.is_write) or lines in reported:
                continue
            if _is_repeated(touch, against, other_content) or _is_repeated(against, touch, own_content):
                continue
            if _share_bytes(touch, against):
                reported.add(lines)
                _warn(launch, allocation, touch, against)


def _first_writes(touches: list[_Touch]) -> dict[tuple[object, ...], int]:
    """Return what a core writes, and the number of the first instruction that writes it."""
    first_writes: dict[tuple[object, ...], int] = {}
    for touch in touches:
        if touch.content is not None:
            first_writes.setdefault(touch.content, touch.number)
    return first_writes


def _is_repeated(write: _Touch, against: _Touch, content: dict[tuple[object, ...], int]) -> bool:
    """Return whether the other core has written the same values itself by the time of its access."""
    number = content.get(write.content) if write.content is not None else None
    return number is not None and number <= against.number


def _share_bytes(first: _Touch, second: _Touch) -> bool:
    if first.box.is_exact and second.box.is_exact:
        return True
    return bool(
        np.intersect1d(byte_numbers(first.access), byte_numbers(second.access), assume_unique=True).size
    )


def _warn(launch: Launch, allocation: Allocation, first: _Touch, second: _Touch) -> None:
    does, other_does = ("writes" if touch.is_write else "reads" for touch in (first, second))
    launch.warn(
        _KIND,
        f"{first.record.opcode}: core 0 {does} {allocation.label} while core 1 {other_does} the same elements at "
        f"{second.record.location}, with no barrier between; put nisa.core_barrier there "
        f"({allocation.label} declared at {allocation.location})",
        first.record.location,
    )
