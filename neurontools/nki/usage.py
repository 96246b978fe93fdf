"""The use of SBUF and PSUM over a kernel's instructions: lifetimes of tensors, the peak, overflow and overlap.

A tensor holds its memory from its first write to its last access, in program order. Where SBUF overflows so, loads wait
until their tensors are needed; where PSUM does, what reads a tensor runs as soon as its operands are written: "the
compiler scheduler is free to reorder independent operations" (document of `nki.language.no_reorder`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from neurontools.nki.errors import KernelError
from neurontools.nki.memory import ON_CHIP, MemoryRegion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.nki.context import Core, Record
    from neurontools.nki.limits import Limits
    from neurontools.nki.memory import Allocation

_MOST_NOTES = 10
_NAMES = {MemoryRegion.sbuf: "SBUF", MemoryRegion.psum: "PSUM"}
_ALIGNMENT = 32  # bytes a partition; no document says how tensors are aligned


@dataclass(slots=True)
class Lifetime:
    """The instructions during which a tensor on the chip holds its memory.

    Args:
        allocation: the tensor.
        first: number of the instruction that writes it first.
        last: number of the last access.
    """

    allocation: Allocation
    first: int
    last: int

    @property
    def partition_bytes(self) -> int:
        """Bytes of a partition that it holds."""
        return -(-self.allocation.partition_bytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class ChipMemory:
    """The use of one memory of a core.

    Args:
        region: SBUF or PSUM.
        levels: numbers of instructions, each with the bytes of a partition in use from it on.
        peak_bytes: the most bytes of a partition.
        peak: number of the first instruction with that many.
        lifetimes: of the tensors.
    """

    region: MemoryRegion
    levels: tuple[tuple[int, int], ...]
    peak_bytes: int
    peak: int
    lifetimes: tuple[Lifetime, ...]

    def alive(self, number: int) -> list[Lifetime]:
        """Return the tensors alive at an instruction, largest first."""
        alive = [item for item in self.lifetimes if item.first <= number <= item.last]
        return sorted(alive, key=lambda item: (-item.partition_bytes, item.first))


def lifetimes(records: Sequence[Record]) -> list[Lifetime]:
    """Return the lifetimes of the tensors on the chip that instructions access, by first access."""
    sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
    by_tensor: dict[Allocation, Lifetime] = {}
    for number, record in enumerate(records):
        for accesses in (record.reads, record.writes):
            for access in accesses:
                allocation = access.allocation
                lifetime = by_tensor.get(allocation)
                if lifetime is not None:
                    lifetime.last = number
                elif allocation.region is sbuf or allocation.region is psum:
                    by_tensor[allocation] = Lifetime(allocation, number, number)
    return list(by_tensor.values())


def placed_lifetimes(core: Core) -> list[Lifetime]:
    """Return the lifetimes of a core's tensors on the chip, in an order that the compiler may choose where one overflows."""
    alive = lifetimes(core.records)
    if not core.launch.keeps_order:
        for region, reorder in ((MemoryRegion.psum, _advance_reads), (MemoryRegion.sbuf, _delay_loads)):
            if usage(region, alive).peak_bytes > capacity(region, core.limits):
                reorder(core.records, alive)
    return alive


def _advance_reads(records: Sequence[Record], alive: Iterable[Lifetime]) -> None:
    """Let tensors in PSUM end when what reads them can run, and what it writes begin then."""
    tensors = {item.allocation: item for item in alive}
    written: dict[Allocation, int] = {}
    used: dict[Allocation, int] = {}
    for number, record in enumerate(records):
        reads = [access.allocation for access in record.reads]
        writes = [access.allocation for access in record.writes]
        in_psum = [item.region is MemoryRegion.psum for item in (*reads, *writes)]
        at = number
        if any(in_psum[: len(reads)]) and not any(in_psum[len(reads) :]) and not record.after:
            at = max([written.get(item, 0) for item in reads] + [used.get(item, 0) for item in writes])
        for item in writes:
            written[item] = max(written.get(item, 0), at)
            if item in tensors:
                tensors[item].first = min(tensors[item].first, at)
        for item in (*reads, *writes):
            used[item] = max(used.get(item, 0), at)
    for item, lifetime in tensors.items():
        if item.region is MemoryRegion.psum and item.address is None:
            lifetime.last = used[item]


def _delay_loads(records: Sequence[Record], alive: Iterable[Lifetime]) -> None:
    """Let tensors that hold what the kernel only reads in HBM begin with their first use after the loads."""
    written = {access.allocation for record in records for access in record.writes}
    loaded = {
        item.allocation: item
        for item in alive
        if item.allocation.region is MemoryRegion.sbuf and item.allocation.address is None
    }
    for number, record in enumerate(records):
        sources = [access.allocation for access in record.reads[:1]]  # the others are indices
        is_load = record.engine == "dma" and not any(
            source.region in ON_CHIP or source in written for source in sources
        )
        for access in record.reads if is_load else (*record.reads, *record.writes):
            item = loaded.pop(access.allocation, None)
            if item is not None:
                item.first = number


def usage(region: MemoryRegion, alive: Iterable[Lifetime]) -> ChipMemory:
    """Return the use of a memory by tensors of known lifetimes."""
    tensors = tuple(item for item in alive if item.allocation.region is region)
    changes: dict[int, int] = {}
    for item in tensors:
        changes[item.first] = changes.get(item.first, 0) + item.partition_bytes
        changes[item.last + 1] = changes.get(item.last + 1, 0) - item.partition_bytes
    numbers = sorted(changes)
    levels = tuple(zip(numbers, accumulate(changes[number] for number in numbers), strict=True))
    peak, most = max(levels, key=lambda level: (level[1], -level[0]), default=(0, 0))
    return ChipMemory(region, levels, most, peak, tensors)


def check_usage(core: Core, alive: Sequence[Lifetime]) -> None:
    """Check that the tensors of a core fit on the chip.

    Raises:
        KernelError: SBUF or PSUM overflows, or two tensors alive share addresses.
    """
    for region in _NAMES:
        _check_capacity(core, usage(region, alive))
        _check_addresses(
            [item for item in alive if item.allocation.region is region and item.allocation.address]
        )


def capacity(region: MemoryRegion, limits: Limits) -> int:
    """Return the bytes of a partition that tensors may use."""
    return limits.sbuf_usable_bytes if region is MemoryRegion.sbuf else limits.psum_partition_bytes


def _check_capacity(core: Core, used: ChipMemory) -> None:
    most = capacity(used.region, core.limits)
    if used.peak_bytes <= most:
        return
    over = next(number for number, nbytes in used.levels if nbytes > most)
    record = core.records[over]
    alive = used.alive(used.peak)
    notes = [
        f"note: {item.allocation.label}: {item.partition_bytes} bytes a partition, declared at {item.allocation.location}"
        for item in alive[:_MOST_NOTES]
    ]
    if len(alive) > _MOST_NOTES:
        rest = sum(item.partition_bytes for item in alive[_MOST_NOTES:])
        notes.append(f"note: {len(alive) - _MOST_NOTES} more tensors: {rest} bytes a partition")
    peak = core.records[used.peak].location
    problem = f"{used.peak_bytes} bytes a partition at {peak}, at most {most} on {core.limits.target}"
    if core.launch.first_generation and not any(item.allocation.address for item in alive):
        # The compiler of the first generation moves tensors to HBM and back where the kernel places none itself.
        text = f"{_NAMES[used.region]} overflow: {problem}; the compiler spills, which takes time that is not modelled"
        core.launch.warn("spill", text, record.location)
        return
    raise KernelError(
        "\n".join([f"{record.location}: {_NAMES[used.region]} overflow: {problem}", *notes]),
        "use smaller tiles, or declare tensors where they are used so that they share memory",
    )


def _check_addresses(alive: list[Lifetime]) -> None:
    """Raise an error for two tensors that share addresses while both are alive."""
    active: list[Lifetime] = []
    for item in sorted(alive, key=lambda item: item.first):
        active = [other for other in active if other.last > item.first]
        for other in active:
            if _overlap(item.allocation, other.allocation):
                first, second = other.allocation, item.allocation
                raise KernelError(
                    f"{second.location}: {second.label} at {second.address} overlaps {first.label} at {first.address}, "
                    f"and both are in use\n"
                    f"note: {first.label} declared at {first.location}\n"
                    f"note: {second.label} declared at {second.location}",
                    "choose other addresses, or let the compiler choose them",
                )
        active.append(item)


def _overlap(first: Allocation, second: Allocation) -> bool:
    assert first.address is not None
    assert second.address is not None
    rows = (
        first.address[0] < second.address[0] + second.shape[0]
        and second.address[0] < first.address[0] + first.shape[0]
    )
    start, other = first.address[1], second.address[1]
    return rows and start < other + second.partition_bytes and other < start + first.partition_bytes


def level_at(levels: Sequence[tuple[int, int]], number: int) -> int:
    """Return the bytes in use at an instruction."""
    at = bisect_right(levels, number, key=lambda level: level[0]) - 1
    return levels[at][1] if at >= 0 else 0
