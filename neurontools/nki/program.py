"""The instructions that a core has executed as a program of engine instructions, and when they run.

Each instruction waits for those whose results it reads or overwrites. Tensors on the chip get addresses as a compiler
would choose them, from their lifetimes: SBUF by next fit in a ring, PSUM by banks in turn. So an instruction that writes
a tensor first also waits for the last accesses of the tensors whose memory it takes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from neurontools.base.garbage import without_collection
from neurontools.compiler.engines.instructions import Instruction, InstructionFacts, KernelProgram, Levels
from neurontools.compiler.engines.modelled_core import ModelledCore, kernel_core
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.engines.schedule import schedule
from neurontools.machine.instances.catalogue import devices
from neurontools.nki.dtypes import item_bytes
from neurontools.nki.instruction_costs import InstructionCosts
from neurontools.nki.invariants import Repetitions, repetitions
from neurontools.nki.memory import ON_CHIP, MemoryRegion
from neurontools.nki.regions import Boxes
from neurontools.nki.usage import lifetimes, usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.engines.schedule import Schedule
    from neurontools.machine.instances.catalogue import DeviceType
    from neurontools.nki.context import Core, Launch, Record
    from neurontools.nki.limits import Limits
    from neurontools.nki.memory import Allocation
    from neurontools.nki.regions import Box
    from neurontools.nki.usage import Lifetime

_PSUM = MemoryRegion.psum
CELL_BYTES = 512
"""Bytes a partition of the smallest piece of SBUF that a tensor takes."""

_Latest = dict[int, int]
"""By queue the latest instruction; each transfer is a queue of its own, as transfers overtake each other."""

_source_of = lru_cache(4096)(str)
_CODES = {engine: -1 - number for number, engine in enumerate(Engine)}


@cache
def device_of_target(target: str) -> DeviceType:
    """Return the device of a target such as trn2."""
    names = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}
    return next(device for device in devices() if names.get(target, target) in device.targets)


def modelled_core(limits: Limits) -> ModelledCore:
    """Return the physical core that kernels run on."""
    return kernel_core(device_of_target(limits.target))


def start_us(limits: Limits) -> float:
    """Return the time that every kernel takes besides its instructions."""
    return modelled_core(limits).costs.kernel_start_ns / 1e3


def modelled_us(launch: Launch) -> float:
    """Return the modelled time of a launch: of the slower core, the start included. Barriers take no time."""
    return start_us(launch.limits) + duration_ns(launch) / 1e3


def duration_ns(launch: Launch) -> float:
    """Return the modelled time of a launch without the start: what it takes within a larger graph."""
    return max(schedule_of(core).end_ns for core in launch.cores)


def schedule_of(core: Core) -> Schedule:
    """Return when the instructions of a core run."""
    return _schedule(program_of(core), core)


def _schedule(program: KernelProgram, core: Core) -> Schedule:
    with without_collection():
        return schedule(program.alone(), modelled_core(core.limits))


def slowest_program(launch: Launch) -> KernelProgram:
    """Return the program of the core that takes longest, as a graph with the kernel shows it."""
    programs = [program_of(core) for core in launch.cores]
    if len(programs) == 1:
        return programs[0]
    return max(programs, key=lambda program: _schedule(program, launch.cores[0]).end_ns)


def program_of(core: Core) -> KernelProgram:
    """Return the program of a core."""
    with without_collection():
        return _Builder(core, lifetimes(core.records)).run()


class _Tensor(Boxes):
    """The accesses of an allocation so far, by box.

    Args:
        inherited: instructions that used its memory before.
    """

    __slots__ = ("inherited", "reads", "writes")

    def __init__(self, inherited: _Latest) -> None:
        super().__init__()
        self.inherited = inherited
        self.reads: list[_Latest] = []
        self.writes: list[_Latest] = []

    def _add(self, box: Box, number: int) -> None:
        super()._add(box, number)
        self.reads.append({})
        self.writes.append(self.inherited.copy())

    def latest(self) -> _Latest:
        """Return the last accesses of all."""
        found: _Latest = dict(self.inherited) if not self.reads else {}
        for queues in (*self.reads, *self.writes):
            _join(found, queues)
        return found


def _join(into: _Latest, queues: _Latest) -> None:
    if not into:
        into.update(queues)
        return
    for queue, number in queues.items():
        if into.get(queue, -1) < number:
            into[queue] = number


class _Builder:
    def __init__(self, core: Core, alive: Sequence[Lifetime]) -> None:
        self.core = core
        self.costs = InstructionCosts(modelled_core(core.limits), core.limits.generation)
        self.instructions: list[Instruction] = []
        self.facts: list[InstructionFacts] = []
        self.hbm: dict[Allocation, int] = {}  # numbers of the tensors that transfers read or write
        self.tensors: dict[Allocation, _Tensor | None] = {}
        self.memories = {
            MemoryRegion.sbuf: _Ring(core.limits.sbuf_usable_bytes // CELL_BYTES, CELL_BYTES),
            MemoryRegion.psum: _Ring(core.limits.psum_banks, core.limits.psum_bank_bytes),
        }
        self.alive = {item.allocation: item for item in alive}
        self.repeated = Repetitions(frozenset(), {})
        if core.launch.first_generation:
            self._leave_out_repetitions()
        self.of_record: dict[int, int] = {}  # the last instruction of a record, where others name it

    def _leave_out_repetitions(self) -> None:
        self.repeated = repetitions(self.core.records)
        for later, earlier in self.repeated.earlier.items():
            lifetime, other = self.alive[earlier], self.alive.pop(later)
            self.alive[earlier] = replace(lifetime, last=max(lifetime.last, other.last))

    def run(self) -> KernelProgram:
        self._find_hbm()
        named = {id(earlier) for record in self.core.records for earlier in record.after}
        firsts = []
        for number, record in enumerate(self.core.records):
            firsts.append(len(self.instructions))
            if (record.writes or record.reads) and number not in self.repeated.numbers:
                self._add(number, record)
            if id(record) in named:
                self.of_record[id(record)] = len(self.instructions) - 1
        firsts.append(len(self.instructions))
        limits, alive = self.core.limits, self.alive.values()
        banks = _levels(usage(MemoryRegion.psum, alive).levels, firsts)
        used = _levels(usage(MemoryRegion.sbuf, alive).levels, firsts)
        return KernelProgram(
            tuple(self.instructions),
            tuple(self.facts),
            tuple((number, nbytes * limits.partitions) for number, nbytes in used),
            tuple((number, -(-nbytes // limits.psum_bank_bytes)) for number, nbytes in banks),
        )

    def _find_hbm(self) -> None:
        """Leave out tensors in HBM that are only read or only written: no instruction waits for another there."""
        records = self.core.records
        read = {access.allocation for record in records for access in record.reads}
        written = {access.allocation for record in records for access in record.writes}
        for allocation in read ^ written:
            if allocation.region not in ON_CHIP:
                self.tensors[allocation] = None

    def _add(self, number: int, record: Record) -> None:
        if record.engine == "dma":
            self._add_transfer(number, record)
            return
        cost = self.costs.cost(record)
        queue = _CODES[cost.engine] if cost.scalar_ns < 0 else len(self.instructions)
        waits, bank_waits = self._note(record, queue, len(self.instructions))
        self._issue(
            Instruction(
                cost.engine,
                cost.opcode,
                1,
                cost.time_ns,
                tuple(waits),
                (len(self.instructions),),
                flops=record.options.get("flops", 0),
                scalar_ns=cost.scalar_ns,
                source=_source_of(record.location),
            ),
            InstructionFacts(number, cost.partitions, bank_waits=tuple(bank_waits), could_ns=cost.could_ns),
        )

    def _add_transfer(self, number: int, record: Record) -> None:
        transfer = self.costs.transfer(record)
        at = len(self.instructions)
        making = transfer.descriptors
        own = at if making is None else at + 1
        waits, _ = self._note(record, own, own)
        source = _source_of(record.location)
        if making is not None:
            self._issue(
                Instruction(
                    making,
                    "DESCRIPTORS",
                    1,
                    transfer.making_ns,
                    tuple(waits) if making is Engine.GPSIMD else (),
                    (at,),
                    source=source,
                ),
                InstructionFacts(number),
            )
            waits.add(at)
        is_load = bool(record.reads) and record.reads[0].allocation.region not in ON_CHIP
        is_store = record.writes[0].allocation.region not in ON_CHIP
        outside = record.writes[0] if is_store else record.reads[0] if is_load else None
        self._issue(
            Instruction(
                Engine.DMA,
                transfer.opcode,
                1,
                transfer.time_ns,
                tuple(waits),
                (own,),
                read_bytes=transfer.nbytes if is_load else 0,
                write_bytes=transfer.nbytes if is_store else 0,
                source=source,
            ),
            InstructionFacts(number, transfer.partitions, transfer.row_bytes)
            if outside is None
            else InstructionFacts(
                number,
                transfer.partitions,
                transfer.row_bytes,
                self.hbm.setdefault(outside.allocation, len(self.hbm)),
                max(outside.offset, 0) * item_bytes(outside.dtype),
                outside.allocation.region is not MemoryRegion.shared_hbm,
            ),
        )

    def _issue(self, instruction: Instruction, facts: InstructionFacts) -> None:
        self.instructions.append(instruction)
        self.facts.append(facts)

    def _note(self, record: Record, queue: int, number: int) -> tuple[set[int], set[int]]:
        """Note the accesses of a record.

        Returns:
            the instructions that it waits for, and those of other engines among them that it waits for only because
            they use the memory in PSUM that it writes.
        """
        waits: _Latest = {}
        banks: _Latest = {}
        read = self._note_reads(record, waits)
        self._note_writes(record, queue, number, waits, banks)
        for tensor, node in read:
            tensor.reads[node][queue] = number
        numbers = set(waits.values())
        if record.after:
            numbers.update(
                self.of_record[id(earlier)] for earlier in record.after if id(earlier) in self.of_record
            )
        bank_waits: set[int] = set()
        if banks:
            bank_waits = {each for code, each in banks.items() if code != queue} - numbers
            numbers.update(banks.values())
        numbers.discard(number)
        return numbers, bank_waits

    def _note_reads(self, record: Record, waits: _Latest) -> list[tuple[_Tensor, int]]:
        nodes: list[tuple[_Tensor, int]] = []
        tensors = self.tensors
        for access in record.reads:
            allocation = access.allocation
            tensor = tensors[allocation] if allocation in tensors else self._tensor(allocation)
            if tensor is None:
                continue
            node = tensor.number(access)
            nodes.append((tensor, node))
            writes = tensor.writes
            for other in tensor.overlapping[node]:
                if queues := writes[other]:
                    _join(waits, queues)
        return nodes

    def _note_writes(self, record: Record, queue: int, number: int, waits: _Latest, banks: _Latest) -> None:
        tensors = self.tensors
        for access in record.writes:
            allocation = access.allocation
            tensor = tensors[allocation] if allocation in tensors else self._tensor(allocation)
            if tensor is None:
                continue
            into = banks if allocation.region is _PSUM else waits
            node = tensor.number(access)
            reads, writes = tensor.reads, tensor.writes
            for other in tensor.overlapping[node]:
                if queues := writes[other]:
                    _join(into, queues)
                if queues := reads[other]:
                    _join(into, queues)
            for other in tensor.covered[node]:  # itself among them
                reads[other] = {}
                writes[other] = {queue: number}

    def _tensor(self, allocation: Allocation) -> _Tensor | None:
        """Return the accesses of an allocation of which there were none before, placed where it is on the chip."""
        earlier = self.repeated.earlier.get(allocation)
        if earlier is not None:
            return self.tensors[earlier] if earlier in self.tensors else self._tensor(earlier)
        inherited: _Latest = {}
        memory = self.memories.get(allocation.region)
        lifetime = self.alive.get(allocation)
        tensor = self.tensors[allocation] = _Tensor(inherited)
        if memory is not None and lifetime is not None:
            for before in memory.place(lifetime, tensor):
                _join(inherited, before.latest())
        return tensor


def _levels(levels: Sequence[tuple[int, int]], firsts: Sequence[int]) -> Levels:
    """Return levels by record as those by instruction."""
    return tuple((firsts[number], nbytes) for number, nbytes in levels)


class _Ring:
    """Memory in equal cells, of which a tensor takes a row; the search goes on behind the tensor placed last.

    Args:
        count: cells.
        cell_bytes: bytes a partition of each.
    """

    def __init__(self, count: int, cell_bytes: int) -> None:
        self.count = count
        self.cell_bytes = cell_bytes
        self.until = [-1] * count  # the last instruction that uses what is in a cell
        self.holders: list[Any] = [None] * count
        self.next = 0
        self.chosen: list[tuple[int, int, int, int, _Tensor]] = []

    def place(self, lifetime: Lifetime, tensor: _Tensor) -> set[_Tensor]:
        """Place a tensor and return those that held its memory before."""
        if lifetime.allocation.address is not None:
            return self._place_chosen(lifetime.allocation, tensor)
        cells = min(max(1, -(-lifetime.allocation.partition_bytes // self.cell_bytes)), self.count)
        start = self._find(cells, lifetime.first)
        self.next = (start + cells) % self.count
        end = start + cells
        before = set(self.holders[start:end])
        before.discard(None)
        self.holders[start:end] = [tensor] * cells
        self.until[start:end] = [lifetime.last] * cells
        return before

    def _place_chosen(self, allocation: Allocation, tensor: _Tensor) -> set[_Tensor]:
        """Place a tensor where the kernel says, byte by byte: neighbours are not aligned to cells."""
        assert allocation.address is not None
        row, start = allocation.address
        end_row, end = row + allocation.shape[0], start + allocation.partition_bytes
        before: set[_Tensor] = set()
        kept = []
        for item in self.chosen:
            first_row, last_row, first, last, holder = item
            if first < end and start < last and first_row < end_row and row < last_row:
                before.add(holder)
                if start <= first and last <= end and row <= first_row and last_row <= end_row:
                    continue
            kept.append(item)
        kept.append((row, end_row, start, end, tensor))
        self.chosen = kept
        return before

    def _find(self, cells: int, first: int) -> int:
        """Return the first free row of cells from the last one on, the next cells where none is free."""
        until, count = self.until, self.count
        start = self.next if self.next + cells <= count else 0
        tried = 0
        while tried <= count:
            busy = next(
                (cell for cell in range(start + cells - 1, start - 1, -1) if until[cell] >= first), -1
            )
            if busy < 0:
                return start
            tried += busy + 1 - start
            start = busy + 1
            if start + cells > count:
                tried += count - start
                start = 0
        return self.next if self.next + cells <= count else 0
