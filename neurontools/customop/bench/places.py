"""Memory accesses by place in the source, counted by the kernel runtime and read from the worker after a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.customop import abi
from neurontools.customop.backtrace import user_location
from neurontools.customop.calls import new_request

if TYPE_CHECKING:
    from neurontools.customop.calls import Executor
    from neurontools.customop.package import Package

OUTPUT = -2
TEMPORARY = -1


class Way(StrEnum):
    """How a kernel accesses a tensor, in the order of `neurontools::Way` in `counting.hpp`."""

    ELEMENT = "element accesses"
    STREAM = "stream copies"
    TCM = "TCM copies"
    FUNCTION = "tensor functions"
    MOVE = "moves in HBM"
    RETURNED = "returned tensor"
    UNBUFFERED = "streams without a buffer"


_WAYS = tuple(Way)


@dataclass(frozen=True, slots=True)
class Place:
    """Accesses of one place in the source to one tensor on one core.

    Args:
        way: kind of access.
        core: GPSIMD core.
        tensor: position of the argument, -1 for a tensor that the kernel made, -2 for the output.
        count: number of accesses or copies.
        nbytes: bytes of these.
        largest_bytes: bytes of the largest access or copy.
        location: `file:line` in the user's sources, "" when unknown.
    """

    way: Way
    core: int
    tensor: int
    count: int
    nbytes: int
    largest_bytes: int
    location: str

    @property
    def modelled_ns(self) -> float:
        """Modelled time of the accesses."""
        rates = gpsimd.rates()
        match self.way:
            case Way.ELEMENT | Way.UNBUFFERED:
                return self.count * rates.element_access_ns
            case Way.MOVE | Way.RETURNED:
                return self.count * rates.move_latency_ns + self.nbytes * rates.move_ns_per_byte
            case _:
                return self.count * rates.transfer_latency_ns + self.nbytes * rates.transfer_ns_per_byte


def read_places(executor: Executor, package: Package) -> tuple[Place, ...]:
    """Return what the last run counted, if it ran with `count_places`.

    Args:
        executor: ran the kernel.
        package: its library.
    """
    sources = tuple(entry.path for entry in package.manifest.sources)
    places: list[Place] = []
    while True:
        request = new_request(abi.PLACES_COMMAND, len(places), 0)
        lines = executor.call(request, {}, None).warnings
        places += (_place(line, package.parts.kernel, sources) for line in lines)
        if not lines:
            return tuple(place for place in places if place.count)


def _place(line: str, library: bytes, sources: tuple[str, ...]) -> Place:
    *numbers, frames = line.split("\t")
    way, core, tensor, count, nbytes, largest = map(int, numbers)
    addresses = [int(frame, 16) for frame in frames.split(",") if frame]
    return Place(_WAYS[way], core, tensor, count, nbytes, largest, user_location(library, addresses, sources))
