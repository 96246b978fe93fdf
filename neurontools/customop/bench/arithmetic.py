"""A kernel's own arithmetic: what the counters of a counting library say of a run, by core and by line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.customop import abi
from neurontools.customop.bench.instructions import function_name
from neurontools.customop.building.toolchain import INCLUDE, SOURCE
from neurontools.customop.calls import new_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neurontools.customop.bench.assembly import Segment
    from neurontools.customop.bench.counting_library import CountingLibrary
    from neurontools.customop.calls import Executor

Counts = tuple[dict[int, int], ...]
"""For each core, how often each block ran; those that did not are left out."""

_OURS = (f"{INCLUDE}/", f"{SOURCE}/")


@dataclass(frozen=True, slots=True)
class LineCycles:
    """What one line of the source takes: `file:line`, cycles, and those of them that library functions take."""

    location: str
    cycles: float
    function_cycles: float


@dataclass(frozen=True, slots=True)
class FunctionCycles:
    """A function of the C library that a kernel calls: its name, calls, cycles of all."""

    name: str
    calls: int
    cycles: int


class Arithmetic:
    """Tells what runs of a counting library's kernels took.

    Args:
        library: the library.
    """

    def __init__(self, library: CountingLibrary) -> None:
        from neurontools.customop.bench.segment_places import SegmentPlaces

        self._library = library
        self._places = SegmentPlaces(library)

    def read(self, executor: Executor, cores: int) -> Counts:
        """Return the counts of the last run, if it was one that counts.

        Args:
            executor: what ran the kernel.
            cores: on how many cores.
        """
        counts: Counts = tuple({} for _ in range(cores))
        read = 0
        while True:
            request = new_request(abi.BLOCKS_COMMAND, read, 0)
            lines = executor.call(request, {}, None).warnings
            for line in lines:
                core, index, count = map(int, line.split("\t"))
                counts[core][index] = count
            read += len(lines)
            if not lines:
                self._places.look_up(self._foreign(counts))
                return counts

    def cycles(self, counts: Mapping[int, int]) -> float:
        """Return the cycles of one core."""
        return sum(segment.cycles * count for segment, count in self._own(counts))

    def lines(self, counts: Mapping[int, int]) -> tuple[LineCycles, ...]:
        """Return where one core's cycles go, the most first."""
        cycles: defaultdict[str, float] = defaultdict(float)
        functions: defaultdict[str, float] = defaultdict(float)
        for segment, count in self._own(counts):
            location = self._places.location(segment)
            cycles[location] += segment.cycles * count
            functions[location] += count * sum(taken for _, taken in segment.calls)
        rows = [LineCycles(place, taken, functions[place]) for place, taken in cycles.items() if taken]
        return tuple(sorted(rows, key=lambda row: (-row.cycles, row.location)))

    def functions(self, counts: Mapping[int, int]) -> tuple[FunctionCycles, ...]:
        """Return the library functions that one core called, what takes most first."""
        calls: defaultdict[str, int] = defaultdict(int)
        cycles: defaultdict[str, int] = defaultdict(int)
        for segment, count in self._own(counts):
            for symbol, taken in segment.calls:
                name = function_name(symbol)
                calls[name] += count
                cycles[name] += count * taken
        rows = [FunctionCycles(name, calls[name], taken) for name, taken in cycles.items()]
        return tuple(sorted(rows, key=lambda row: (-row.cycles, row.name)))

    def _own(self, counts: Mapping[int, int]) -> Iterable[tuple[Segment, int]]:
        for index, count in counts.items():
            for segment in self._library.blocks[index].segments:
                if not segment.path.startswith(_OURS) and self._places.is_own(segment):
                    yield segment, count

    def _foreign(self, counts: Counts) -> list[Segment]:
        """Return what ran of code that is neither in the user's sources nor ours: of headers, mostly inlined."""
        sources = {entry.path for entry in self._library.package.manifest.sources}
        ran = {index for core in counts for index in core}
        return [
            segment
            for index in sorted(ran)
            for segment in self._library.blocks[index].segments
            if segment.path not in sources and not segment.path.startswith(_OURS)
        ]
