"""When instructions run: engine queues in order, semaphores, pipelining by pieces, prefetched loads, collectives beside.

A group of equal tiles starts when the first piece of each operand is there, and ends no earlier than a piece after its
operands are complete. Between tiles it may wait, so an interval can be longer than the time that the engine is busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neurontools.compiler.engines import dma, on_chip_memory
from neurontools.compiler.engines.instructions import Instruction
from neurontools.compiler.engines.modelled_core import kernel_core
from neurontools.compiler.engines.on_chip_memory import PsumBanks, PsumValue
from neurontools.compiler.engines.placement import Engine

if TYPE_CHECKING:
    from neurontools.compiler.engines.instructions import CoreProgram, KernelProgram, Levels, Step
    from neurontools.compiler.engines.modelled_core import ModelledCore

_NOTHING = -1


class Scheduled(NamedTuple):
    """One group of tiles in time.

    Args:
        instruction: what runs.
        engine: the engine that runs it, which may differ from the instruction's where it had a choice.
        operator: its operator's position in the graph.
        start_ns: when its first tile starts.
        end_ns: when its last tile ends.
        busy_ns: how long the engine works in between.
        after: number of the group that it waited for last, -1 for none.
        waits: groups that it follows, each with the delay that it could have without effect on this one.
    """

    instruction: Instruction
    engine: Engine
    operator: int
    start_ns: float
    end_ns: float
    busy_ns: float
    after: int
    waits: tuple[tuple[int, float], ...]


class Schedule:
    """The groups of a program in the order in which they were placed, and the use of SBUF and PSUM.

    Args:
        groups: what runs.
        residency: transfers and use of SBUF by step.
        psum: results in PSUM.
        program: whose steps they are.
        kernels: each with its step and the group before its first one.
    """

    def __init__(
        self,
        groups: list[Scheduled],
        residency: on_chip_memory.Residency,
        psum: PsumBanks,
        program: CoreProgram,
        kernels: list[tuple[KernelProgram, int, int]],
    ) -> None:
        self.groups = groups
        self.residency = residency
        self.psum = psum
        self.kernels = kernels
        self.operators = [step.operator for step in program.steps]
        self.unknown = tuple(step.operator for step in program.steps if not step.is_known)
        self.end_ns = max((group.end_ns for group in groups), default=0.0)

    def critical_path(self) -> list[int]:
        """Return the numbers of the groups that decide the end, first to last."""
        if not self.groups:
            return []
        number = max(range(len(self.groups)), key=lambda number: (self.groups[number].end_ns, -number))
        found = []
        while number >= 0:
            found.append(number)
            number = self.groups[number].after
        return found[::-1]

    def slack_ns(self) -> list[float]:
        """Return by group how much later it could end without a later end of the whole."""
        found = [self.end_ns - group.end_ns for group in self.groups]
        for number in range(len(self.groups) - 1, -1, -1):
            for earlier, margin in self.groups[number].waits:
                found[earlier] = min(found[earlier], found[number] + margin)
        return found

    def sbuf_use(self) -> list[tuple[float, int]]:
        """Return the bytes of tensors in SBUF from each start of a step on, in order of time."""
        starts: dict[int, float] = {}
        for group in self.groups:
            starts[group.operator] = min(group.start_ns, starts.get(group.operator, group.start_ns))
        used = zip(self.operators, self.residency.used_bytes, strict=True)
        changes = [(starts[operator], nbytes) for operator, nbytes in used if operator in starts]
        for kernel, step, before in self.kernels:
            kept = self.residency.used_bytes[step]
            changes += [(time, kept + nbytes) for time, nbytes in self._levels(before, kernel.sbuf)]
        return sorted(changes, key=lambda level: level[0])

    def psum_use(self) -> list[tuple[float, int]]:
        """Return the banks of PSUM in use (2 KiB a partition each) from each time on, in order of time."""
        changes = self.psum.use()
        for kernel, _, before in self.kernels:
            changes += self._levels(before, kernel.psum)
        return sorted(changes, key=lambda level: level[0])

    def _levels(self, before: int, levels: Levels) -> list[tuple[float, int]]:
        """Return levels of a kernel by time: what an instruction uses counts from when all before it have started."""
        changes, latest, at = [], 0.0, before
        for number, used in levels:
            started = (group.start_ns for group in self.groups[at : before + 2 + number])
            latest = max(latest, max(started, default=latest))
            at = before + 1 + number
            changes.append((latest, used))
        return changes


def schedule(program: CoreProgram, machine: ModelledCore) -> Schedule:
    """Return when the instructions of a program run on a core."""
    return _Scheduler(program, machine).run()


class _Scheduler:
    def __init__(self, program: CoreProgram, machine: ModelledCore) -> None:
        self.program = program
        self.machine = machine
        self.semaphore_ns = machine.costs.semaphore_ns
        self.groups: list[Scheduled] = []
        self.free: dict[Engine, float] = dict.fromkeys(Engine, 0.0)
        self.last: dict[Engine, int] = dict.fromkeys(Engine, _NOTHING)
        self.stored: dict[int, int] = {}  # the last store of a buffer
        self.psum = PsumBanks(machine.costs.psum_banks * machine.lnc)
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.step_ends: list[tuple[float, int]] = []
        self.gaps: list[tuple[float, float, int]] = []  # between transfers, and the one before each gap
        self.latest_transfer = _NOTHING
        self.operator = 0
        self.waits: list[tuple[int, float, float]] = []  # of the instruction at hand
        self.kernels: list[tuple[KernelProgram, int, int]] = []
        self.of_kernel: dict[KernelProgram, Schedule] = {}  # on its own

    def run(self) -> Schedule:
        residency = on_chip_memory.place(self.program, self.machine.sbuf_bytes)
        for number, step in enumerate(self.program.steps):
            self.operator = step.operator
            end, last = 0.0, _NOTHING
            for transfer in residency.loads[number]:
                room = self.step_ends[transfer.earliest - 1] if transfer.earliest else (0.0, _NOTHING)
                moved = dma.load(
                    self.machine,
                    transfer.operands,
                    is_reload=transfer.is_spill,
                    is_transposed=transfer.is_transposed,
                )
                self._transfer(moved, room)
            if step.kernel is not None:
                self.kernels.append((step.kernel, number, len(self.groups)))
                self._run_kernel(step, step.kernel)
                end, last = self.groups[-1].end_ns, len(self.groups) - 1
            for instruction in step.instructions:
                self._add(instruction)
                if self.groups and self.groups[-1].end_ns > end:
                    end, last = self.groups[-1].end_ns, len(self.groups) - 1
            for transfer in residency.stores[number]:
                self._transfer(
                    dma.store(self.machine, transfer.operands, is_spill=transfer.is_spill), (0.0, _NOTHING)
                )
                for operand in transfer.operands:
                    self.stored[operand.buffer] = len(self.groups) - 1
            previous = self.step_ends[-1] if self.step_ends else (0.0, _NOTHING)
            self.step_ends.append(max((end, last), previous))
        self._complete(self.last[Engine.TENSOR], _FOREVER)
        return Schedule(self.groups, residency, self.psum, self.program, self.kernels)

    def _run_kernel(self, step: Step, kernel: KernelProgram) -> None:
        """Add a kernel: it has the core for itself, so its schedule is that which it has alone."""
        self._complete(self.last[Engine.TENSOR], _FOREVER)
        alone = self.of_kernel.get(kernel)
        if alone is None:
            alone = self.of_kernel[kernel] = schedule(kernel.alone(), kernel_core(self.machine.device))
        before = {number for number in (*self.last.values(), self.latest_transfer) if number >= 0}
        begin_ns = max((self.groups[number].end_ns for number in before), default=0.0)
        start = self._pass(step, (), begin_ns, {n: begin_ns - self.groups[n].end_ns for n in before})
        base, ends = start + 1, set(range(len(alone.groups)))
        for group in alone.groups:
            ends.difference_update(earlier for earlier, _ in group.waits)
            waits = tuple((base + earlier, margin) for earlier, margin in group.waits)
            self.groups.append(
                group._replace(
                    operator=step.operator,
                    start_ns=begin_ns + group.start_ns,
                    end_ns=begin_ns + group.end_ns,
                    after=base + group.after if group.after >= 0 else start,
                    waits=waits or ((start, group.start_ns),),
                )
            )
        end_ns = begin_ns + alone.end_ns
        written = tuple(operand.buffer for operand in step.writes)
        end = self._pass(
            step, written, end_ns, {base + n: alone.end_ns - alone.groups[n].end_ns for n in ends}
        )
        for engine in Engine:
            self.free[engine], self.last[engine] = end_ns, end
        self.latest_transfer = end
        self.gaps.clear()
        for buffer in written:
            self.writer[buffer] = self.stored[buffer] = end
            self.readers.pop(buffer, None)

    def _pass(self, step: Step, written: tuple[int, ...], time_ns: float, slack_ns: dict[int, float]) -> int:
        """Add a group that takes no time and follows others, each with its slack, and return its number."""
        after = min(slack_ns, key=lambda number: slack_ns[number], default=_NOTHING)
        nothing = Instruction(Engine.SYNC, "", 0, 0.0, (), written)
        self.groups.append(
            Scheduled(
                nothing, Engine.SYNC, step.operator, time_ns, time_ns, 0.0, after, tuple(slack_ns.items())
            )
        )
        return len(self.groups) - 1

    def _ready(self, instruction: Instruction, busy: float) -> tuple[float, float, int]:
        """Return when the first piece may start, when the last may end, and which group decides."""
        start, end, after = 0.0, 0.0, _NOTHING
        waits = self.waits = []
        groups, writer, readers, own_pieces = self.groups, self.writer, self.readers, instruction.pieces
        for buffer in instruction.reads:
            number = writer.get(buffer, _NOTHING)
            if number < 0:
                continue
            own, engine, operator, begun_ns, ended_ns, _, _, _ = groups[number]
            delay = self.semaphore_ns if engine is not instruction.engine else 0.0
            if own_pieces == 1:
                first, final = ended_ns + delay, ended_ns + busy + delay
            else:
                pieces = min(own_pieces, own.pieces)
                if operator != self.operator and engine is not Engine.DMA:
                    pieces = min(pieces, self.machine.costs.operator_pieces)
                first = begun_ns + (ended_ns - begun_ns) / pieces + delay
                final = ended_ns + busy / pieces + delay
            waits.append((number, first, final))
            start = max(start, first)
            if final > end:
                end, after = final, number
        for buffer in instruction.writes:
            if buffer not in writer and buffer not in readers:
                continue
            for number in (writer.get(buffer, _NOTHING), *readers.get(buffer, ())):
                if number >= 0 and groups[number].end_ns > start:
                    # Overwriting follows the reader piece by piece.
                    made = groups[number]
                    pieces = min(own_pieces, made.instruction.pieces)
                    first = made.start_ns + (made.end_ns - made.start_ns) / pieces
                    final = made.end_ns + busy / pieces
                    waits.append((number, first, final))
                    start = max(start, first)
                    if final > end:
                        end, after = final, number
        return start, end, after

    def _add(self, instruction: Instruction) -> None:
        if instruction.engine is Engine.DMA:
            self._transfer(instruction, (0.0, _NOTHING))
            return
        if instruction.engine is Engine.CC:
            self._exchange(instruction)
            return
        engine, busy = instruction.engine, instruction.count * instruction.tile_ns
        start, end, after = self._ready(instruction, busy)
        if instruction.scalar_ns >= 0:  # the engine that finishes first runs it
            other = instruction.count * instruction.scalar_ns
            if max(self.free[Engine.SCALAR], start) + other < max(self.free[engine], start) + busy:
                engine, busy = Engine.SCALAR, other
                start, end, after = self._ready(instruction, busy)
        if not instruction.count:  # folded into a neighbour: only passes values on
            self._place(instruction, engine, start, max(start, end), 0, after)
            return
        before = after
        if engine is Engine.TENSOR:
            start, before = self._bank(start, before)
        queued = self.free[engine]
        if queued > start:
            start, before = queued, self.last[engine]
        busy += self._ramp(engine, start, busy)
        if start + busy >= end:
            end, after = start + busy, before
        self.free[engine] = self._place(instruction, engine, start, end, busy, after)
        self.last[engine] = len(self.groups) - 1

    def _bank(self, start: float, after: int) -> tuple[float, int]:
        """Return when a product finds a bank of PSUM, and which group decides; complete the product before it."""
        free, evictor = self.psum.free(self.operator)
        if evictor >= 0:
            self.waits.append((evictor, free, -_FOREVER))
        if free > start:
            start, after = free, evictor
        last = self.last[Engine.TENSOR]
        if last >= 0 and self.groups[last].operator != self.operator:
            self._complete(last, start)
        return start, after

    def _complete(self, number: int, limit: float) -> None:
        """Let the last product of an operator end when all its results found a bank."""
        value = self.psum.of_group.get(number)
        if value is None:
            return
        end = min(self.psum.complete_ns(value), limit)
        if end > value.end_ns:
            value.end_ns = end
            self.groups[number] = self.groups[number]._replace(end_ns=end)
            self.free[Engine.TENSOR] = max(self.free[Engine.TENSOR], end)

    def _note_psum(
        self, number: int, instruction: Instruction, engine: Engine, start: float, end: float
    ) -> None:
        """Follow results of products: who makes them, reads them, or only gives them another name."""
        if engine is Engine.TENSOR:
            banks = -(-instruction.psum_elements // self.machine.costs.psum_columns)
            if banks:
                self.psum.make(number, PsumValue(self.operator, int(banks), start, end))
            return
        for buffer in instruction.reads if self.psum.of_group else ():
            made = self.writer.get(buffer, _NOTHING)
            if made in self.psum.of_group:
                if instruction.count:
                    self.psum.read(number, made, self.operator, start, end)
                else:
                    self.psum.of_group[number] = self.psum.of_group[made]

    def _ramp(self, engine: Engine, start: float, busy: float) -> float:
        """Return the time that the Tensor engine loses to its current limit after a pause (trn2 and trn3)."""
        costs = self.machine.costs
        if engine is not Engine.TENSOR or not costs.didt_ns or start - self.free[engine] < costs.didt_ns:
            return 0.0
        return min(busy, costs.didt_ns * (1 - costs.didt_share))

    def _transfer(self, instruction: Instruction, room: tuple[float, int]) -> None:
        busy = instruction.count * instruction.tile_ns
        start, end, after = self._ready(instruction, busy)
        if start > 0:
            latency = self.machine.costs.dma_latency_ns
            start, end = start + latency, end + latency
            self.waits = [(number, first + latency, final + latency) for number, first, final in self.waits]
        start = max(start, end - busy)
        if room[0] > start:
            start, after = room
        at, self.last[Engine.DMA] = self._slot(start, busy)
        if at > start:
            after = self.last[Engine.DMA]
        self._place(instruction, Engine.DMA, at, at + busy, busy, after)

    def _exchange(self, instruction: Instruction) -> None:
        """Add a collective: it reads HBM, so it waits until its operands are stored."""
        busy = instruction.count * instruction.tile_ns
        start, end, after = self._ready(instruction, busy)
        start = max(start, end - busy)
        for buffer in instruction.reads:
            number = self.stored.get(buffer, _NOTHING)
            if number >= 0:
                stored_ns = self.groups[number].end_ns
                self.waits.append((number, stored_ns, stored_ns + busy))
                if stored_ns > start:
                    start, after = stored_ns, number
        if self.free[Engine.CC] > start:
            start, after = self.free[Engine.CC], self.last[Engine.CC]
        self.free[Engine.CC] = self._place(instruction, Engine.CC, start, start + busy, busy, after)
        self.last[Engine.CC] = len(self.groups) - 1

    def _slot(self, ready: float, length: float) -> tuple[float, int]:
        """Return when the next transfer may start, in a gap between others or after them, and which one is before it.

        That time is taken from then on.
        """
        following = len(self.groups)
        for number, (first, last, before) in enumerate(self.gaps):
            # Most gaps are over when the transfer is ready.
            if ready + length <= last and (start := max(first, ready)) + length <= last:
                self.gaps[number : number + 1] = [
                    gap
                    for gap in ((first, start, before), (start + length, last, following))
                    if gap[1] - gap[0] > _SHORTEST_GAP_NS
                ]
                return start, before
        free, before = self.free[Engine.DMA], self.latest_transfer
        start = max(free, ready)
        if start > free:
            self.gaps.append((free, start, before))
            del self.gaps[:-_GAPS]
        self.free[Engine.DMA] = start + length
        self.latest_transfer = following
        return start, before

    def _place(
        self, instruction: Instruction, engine: Engine, start: float, end: float, busy: float, after: int
    ) -> float:
        """Add a group and return its end."""
        number = len(self.groups)
        waits = []
        for earlier, first, final in self.waits:
            margin = min(start - first, end - final)
            waits.append((earlier, margin if margin > 0 else 0.0))
        queued = self.last[engine]
        if queued >= 0 and instruction.count:
            waits.append((queued, max(0.0, start - self.groups[queued].end_ns)))
        self.groups.append(
            Scheduled(instruction, engine, self.operator, start, end, busy, after, tuple(waits))
        )
        if engine is not Engine.DMA and engine is not Engine.CC:
            self._note_psum(number, instruction, engine, start, end)
        for buffer in instruction.reads:
            self.readers.setdefault(buffer, []).append(number)
        for buffer in instruction.writes:
            self.writer[buffer] = number
            self.readers.pop(buffer, None)
        return end


_FOREVER = float("inf")
_GAPS = 32
_SHORTEST_GAP_NS = 1.0
