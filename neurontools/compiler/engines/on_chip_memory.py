"""The memory on the chip over time: values in SBUF, and banks of PSUM.

Values stay in SBUF until their last use. When they do not fit, those whose next use is farthest away leave: what HBM has
is dropped, what it has not is spilled and reloaded. Neighbouring steps that work tile by tile pass values on without
keeping them whole.

A bank of PSUM holds a result of the Tensor engine from its first column to its eviction. A product that fills more banks
than there are goes on only as results are read. Tiles of one operator's products run among each other, so one of them
never waits for another; the product of the next operator waits for a free bank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from neurontools.compiler.engines.instructions import CoreProgram, Step, StepOperand

if TYPE_CHECKING:
    from collections.abc import Sequence


_PREFETCH_LOOKBACK = 64  # steps over which a load may be prefetched
_NEVER = 1 << 60
_TILE_ROW_BYTES = 1024  # of 512 columns in 16 bits


class OperandTransfer(NamedTuple):
    """Operands that are moved for a step.

    Args:
        operands: what is moved.
        is_spill: whether it returns to, or comes from, the spill area.
        earliest: the first step during which there is room for it; for stores the step itself.
        is_transposed: whether the transfer transposes them.
    """

    operands: tuple[StepOperand, ...]
    is_spill: bool
    earliest: int
    is_transposed: bool = False


@dataclass(slots=True)
class Residency:
    """The transfers of a program and its use of SBUF.

    Args:
        loads: by step, what is moved to SBUF before it.
        stores: by step, what is moved to HBM after it.
        used_bytes: by step, what SBUF holds.
        spill_save_bytes: bytes written to the spill area.
        spill_reload_bytes: bytes read from it.
    """

    loads: list[list[OperandTransfer]] = field(default_factory=list)
    stores: list[list[OperandTransfer]] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    spill_save_bytes: int = 0
    spill_reload_bytes: int = 0


def place(program: CoreProgram, capacity: int) -> Residency:
    """Return the transfers of a program on a core with `capacity` bytes of SBUF."""
    return _Placing(program, capacity).run()


class _Placing:
    def __init__(self, program: CoreProgram, capacity: int) -> None:
        self.steps = program.steps
        self.outputs = program.outputs
        self.capacity = capacity
        self.found = Residency()
        self.resident: dict[int, int] = {}
        self.dirty: set[int] = set()
        self.spilled: set[int] = set()
        self.rows: dict[int, float] = {}
        self.used = 0
        self.uses, self.last_write = _uses(program.steps)
        self.regions = _regions(program.steps)
        self.rewritten = _rewritten(program.steps, self.regions)
        self.seen: set[int] = set()

    def run(self) -> Residency:
        region = -1
        for number, step in enumerate(self.steps):
            if self.regions[number] != region:
                region = self.regions[number]
                self.seen.clear()
            stores: list[OperandTransfer] = []
            self.found.stores.append(stores)
            if step.in_hbm:
                self._store_before(number, step)
                continue
            self.found.loads.append(self._load(number, step))
            self.found.used_bytes.append(self.used)
            self._write(number, step, stores)
            self.found.used_bytes[number] = max(self.used, self.found.used_bytes[number])
            self._release(number, step)
        return self.found

    def _load(self, number: int, step: Step) -> list[OperandTransfer]:
        plain: list[StepOperand] = []
        turned: list[StepOperand] = []
        reloads: list[StepOperand] = []
        touched = {operand.buffer for operand in step.reads} | {operand.buffer for operand in step.writes}
        for operand in step.reads:
            slot = operand.buffer
            if operand.nbytes == 0 or slot in self.seen or self.resident.get(slot, -1) >= operand.nbytes:
                continue
            if slot in self.resident and slot in self.dirty:
                continue
            if slot in self.spilled:
                reloads.append(_as_stored(operand._replace(row_bytes=self.rows.get(slot, 1))))
                self.found.spill_reload_bytes += operand.nbytes
            else:
                (turned if operand.is_transposed else plain).append(operand)
            self.seen.add(slot)
            if operand.nbytes <= self.capacity // 2:
                self._keep(number, slot, operand.nbytes, touched)
        found = []
        for operands, is_spill in ((plain, False), (turned, False), (reloads, True)):
            if operands:
                room = self._room(number, sum(operand.nbytes for operand in operands))
                found.append(OperandTransfer(tuple(operands), is_spill, room, operands is turned))
        return found

    def _store_before(self, number: int, step: Step) -> None:
        """Bring the operands of a step that works on HBM there; its results are there too."""
        for operand in step.reads:
            slot = operand.buffer
            if slot in self.dirty and number:
                self.found.stores[number - 1].append(OperandTransfer((operand,), False, number))
                self.dirty.discard(slot)
        for operand in step.writes:
            self._drop(operand.buffer)
            self.spilled.discard(operand.buffer)
            self.seen.discard(operand.buffer)
            self.rows[operand.buffer] = operand.row_bytes
        self.found.loads.append([])
        self.found.used_bytes.append(self.used)
        self._release(number, step)

    def _room(self, number: int, nbytes: int) -> int:
        """Return the first step from which on there is room for a load, and hold that room."""
        used, first = self.found.used_bytes, number
        limit = self.capacity - nbytes
        while first > 0 and number - first < _PREFETCH_LOOKBACK and used[first - 1] <= limit:
            first -= 1
        for earlier in range(first, number):
            used[earlier] += nbytes
        return first

    def _write(self, number: int, step: Step, stores: list[OperandTransfer]) -> None:
        touched = {operand.buffer for operand in step.reads} | {operand.buffer for operand in step.writes}
        for operand in step.writes:
            slot = operand.buffer
            self.spilled.discard(slot)
            self.rows[slot] = operand.row_bytes
            self.seen.add(slot)
            is_last = self.last_write[slot] == number
            if slot in self.outputs and is_last:
                stores.append(OperandTransfer((operand,), False, number))
            after = self._next_use(slot, number)
            if after == _NEVER:
                self._drop(slot)
                continue
            if self.regions[after] == self.regions[number] and operand.nbytes > self.capacity // 8:
                is_kept = False  # passed on tile by tile
                if self._next_use_outside(slot, number) != _NEVER and is_last and slot not in self.outputs:
                    is_kept = operand.nbytes <= self.capacity // 2
            else:
                is_kept = operand.nbytes <= self.capacity // 2
            nbytes = max(operand.nbytes, self.resident.get(slot, 0))
            if is_kept and self._keep(number, slot, nbytes, touched):
                if slot not in self.outputs or not is_last:
                    self.dirty.add(slot)
            elif (number, slot) in self.rewritten:
                self._drop(slot)
            elif self._next_use_outside(slot, number) != _NEVER and slot not in self.outputs:
                self._drop(slot)
                self._spill(number, operand, stores)

    def _spill(self, number: int, operand: StepOperand, stores: list[OperandTransfer]) -> None:
        stores.append(OperandTransfer((_as_stored(operand),), True, number))
        self.found.spill_save_bytes += operand.nbytes
        self.spilled.add(operand.buffer)

    def _keep(self, number: int, slot: int, nbytes: int, touched: set[int]) -> bool:
        """Keep bytes of a buffer from a step on; return whether there is room beside what the step touches."""
        grown = nbytes - self.resident.get(slot, 0)
        if self.used + grown > self.capacity:
            self._make_room(number, self.used + grown - self.capacity, touched | {slot})
        if self.used + grown > self.capacity:
            return False
        self.resident[slot] = nbytes
        self.used += grown
        return True

    def _make_room(self, number: int, nbytes: int, needed: set[int]) -> None:
        candidates = [slot for slot in self.resident if slot not in needed]
        candidates.sort(key=lambda slot: (-self._next_use(slot, number), slot))
        for slot in candidates:
            if nbytes <= 0:
                return
            size = self.resident[slot]
            nbytes -= size
            if slot in self.dirty:
                target = self.found.stores[number]
                self._spill(number, StepOperand(slot, size, self.rows.get(slot, 1)), target)
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        self.used -= self.resident.pop(slot, 0)
        self.dirty.discard(slot)

    def _release(self, number: int, step: Step) -> None:
        for operand in (*step.reads, *step.writes):
            if operand.buffer in self.resident and self._next_use(operand.buffer, number) == _NEVER:
                self._drop(operand.buffer)

    def _next_use(self, slot: int, number: int) -> int:
        """Return the next step that reads a buffer."""
        found = self.uses.get(slot)
        if not found:
            return _NEVER
        while found and found[-1] <= number:
            found.pop()
        return found[-1] if found else _NEVER

    def _next_use_outside(self, slot: int, number: int) -> int:
        """Return the next step outside of this step's region that reads a buffer."""
        region = self.regions[number]
        for use in reversed(self.uses.get(slot, [])):
            if use > number and self.regions[use] != region:
                return use
        return _NEVER


def _as_stored(operand: StepOperand) -> StepOperand:
    """Return an operand as the spill area holds it: in rows of tiles."""
    return operand._replace(row_bytes=max(operand.row_bytes, _TILE_ROW_BYTES))


def _uses(steps: Sequence[Step]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return by buffer the steps that read it, last first, and the last step that writes it."""
    uses: dict[int, list[int]] = {}
    last_write: dict[int, int] = {}
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        for operand in step.reads:
            uses.setdefault(operand.buffer, []).append(number)
        for operand in step.writes:
            last_write.setdefault(operand.buffer, number)
    return uses, last_write


def _rewritten(steps: Sequence[Step], regions: Sequence[int]) -> set[tuple[int, int]]:
    """Return by step and buffer what a later step of the region writes again, so that only the later value is spilled."""
    found: set[tuple[int, int]] = set()
    latest: dict[int, int] = {}
    for number in range(len(steps) - 1, -1, -1):
        for operand in steps[number].writes:
            if latest.get(operand.buffer) == regions[number]:
                found.add((number, operand.buffer))
            latest[operand.buffer] = regions[number]
    return found


def _regions(steps: Sequence[Step]) -> list[int]:
    """Return by step the number of its region: neighbours that work tile by tile share one, with the producer before."""
    found: list[int] = []
    region = -1
    was_streaming = False
    for step in steps:
        if not (step.streams and was_streaming):
            region += 1
        # A step that does not stream begins a region, which streaming steps after it join.
        found.append(region)
        was_streaming = True if step.streams else bool(step.writes)
    return found


_NOTHING = -1
_PSUM_LOOKBACK = 32  # products whose results may still be there


@dataclass(slots=True)
class PsumValue:
    """The results of a group of products.

    Args:
        operator: whose products.
        banks: results of one bank each.
        start_ns: when the first is begun.
        end_ns: when the last is complete.
        reader: operator that reads them besides their own, -1 for none.
        evictor: the group that reads the last one, -1 as long as none does.
        opened_ns: when the first is being read.
        evicted_ns: when the last was read.
    """

    operator: int
    banks: int
    start_ns: float
    end_ns: float
    reader: int = _NOTHING
    evictor: int = _NOTHING
    opened_ns: float = 0.0
    evicted_ns: float = 0.0

    @property
    def reading_ns(self) -> float:
        """The time between two results that are read."""
        return (self.evicted_ns - self.opened_ns) / self.banks

    def in_flight(self, banks: int) -> int:
        """Return the most banks that it holds at once, of those that there are."""
        made_ns = (self.end_ns - self.start_ns) / self.banks
        before = (self.opened_ns - self.start_ns) / made_ns if made_ns else self.banks
        after = (self.evicted_ns - self.end_ns) / self.reading_ns if self.reading_ns else self.banks
        return min(max(1, round(max(before, after) + 0.5)), self.banks, banks)


class PsumBanks:
    """The banks of a core and the values in them, in the order in which products were placed."""

    def __init__(self, banks: int) -> None:
        self.banks = banks
        self.values: list[PsumValue] = []
        self.of_group: dict[int, PsumValue] = {}

    def make(self, group: int, value: PsumValue) -> None:
        """Note what a group of products makes."""
        self.values.append(value)
        self.of_group[group] = value

    def read(self, group: int, made: int, operator: int, start_ns: float, end_ns: float) -> None:
        """Note that a group reads the results of a group of products."""
        value = self.of_group[made]
        if value.operator != operator:
            if value.reader not in {_NOTHING, operator}:
                return  # a later reader finds them in SBUF
            value.reader = operator
        if value.evictor == _NOTHING:
            value.opened_ns = start_ns
        value.opened_ns = min(value.opened_ns, start_ns)
        if end_ns > value.evicted_ns:
            value.evictor, value.evicted_ns = group, end_ns

    def free(self, operator: int) -> tuple[float, int]:
        """Return when a product of an operator finds a free bank, and the group that frees it.

        Its first result takes the place of the last but seven before it (of eight banks).
        """
        later = 0
        for value in self.values[: -_PSUM_LOOKBACK - 1 : -1]:
            if value.operator == operator or value.evictor == _NOTHING:
                continue
            if later + value.banks >= self.banks:
                return value.evicted_ns - (self.banks - 1 - later) * value.reading_ns, value.evictor
            later += value.banks
        return 0.0, _NOTHING

    def complete_ns(self, value: PsumValue) -> float:
        """Return when the last result of a product is complete, which needs a bank that was read."""
        if value.evictor == _NOTHING or value.banks <= self.banks:
            return value.end_ns
        made_ns = (value.end_ns - value.start_ns) / value.banks
        waited = value.evicted_ns - self.banks * value.reading_ns + made_ns
        return max(value.end_ns, min(waited, value.evicted_ns))

    def use(self) -> list[tuple[float, int]]:
        """Return the banks in use from each time on, in order of time."""
        changes: dict[float, int] = {}
        for value in self.values:
            if value.evictor == _NOTHING:
                continue
            held = value.in_flight(self.banks)
            changes[value.start_ns] = changes.get(value.start_ns, 0) + held
            for left in range(held):
                time_ns = max(value.end_ns, value.evicted_ns - left * value.reading_ns)
                changes[time_ns] = changes.get(time_ns, 0) - 1
        times = sorted(changes)
        levels = accumulate(changes[time_ns] for time_ns in times)
        return [(time_ns, min(level, self.banks)) for time_ns, level in zip(times, levels, strict=True)]
