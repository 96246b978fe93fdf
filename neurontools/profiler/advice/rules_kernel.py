"""Rules about kernels: what a changed kernel would gain by the engine model, alone or within its graph."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from neurontools.base.units import format_binary_size, format_percent
from neurontools.compiler.engines.dma import PLAIN_OPCODE
from neurontools.compiler.engines.modelled_core import kernel_core
from neurontools.compiler.engines.placement import Engine, split_name
from neurontools.compiler.engines.schedule import schedule
from neurontools.profiler.advice.changed_kernels import (
    leave_out,
    merge,
    neighbours,
    on_scalar,
    with_banks,
    with_rows,
)
from neurontools.profiler.advice.findings import Advice, Evidence, Silent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from neurontools.compiler.engines.instructions import KernelProgram
    from neurontools.compiler.engines.modelled_core import ModelledCore
    from neurontools.compiler.engines.schedule import Schedule
    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledProgram, Trial

_BOUND = 0.5
"""Busy share of a kernel's time from which an engine bounds it."""
_LINES = 3


class ProfiledKernel:
    """A kernel of a profiled program.

    Args:
        program: the program.
        kernel: its instructions.
        positions: of its calls in the graph.
    """

    def __init__(self, program: ProfiledProgram, kernel: KernelProgram, positions: Sequence[int]) -> None:
        self.program = program
        self.kernel = kernel
        self.positions = positions
        self.machine: ModelledCore = kernel_core(program.device)
        self.schedule: Schedule = schedule(kernel.alone(), self.machine)

    @property
    def name(self) -> str:
        """Its name in the program."""
        return split_name(self.program.graph.nodes[self.positions[0]].op)[1]

    @property
    def time_ns(self) -> float:
        """Time of one call."""
        return self.schedule.end_ns

    def busy_share(self, engine: Engine) -> float:
        """Return the part of a call during which an engine works."""
        busy = sum(group.busy_ns for group in self.schedule.groups if group.engine is engine)
        return busy / max(self.time_ns, 1.0)

    def time_of(self, changed: KernelProgram) -> float:
        """Return the time of one call of a changed kernel."""
        return schedule(changed.alone(), self.machine).end_ns

    def trial(self, changed: KernelProgram, *, is_bound: bool = False) -> Trial:
        """Return what the engine model says of the program with a changed kernel."""
        return self.program.trial(custom=dict.fromkeys(self.positions, changed), is_bound=is_bound)

    def lines(self, numbers: Collection[int], text: str = "") -> tuple[Evidence, ...]:
        """Return the lines of instructions, those of most time first."""
        busy: Counter[tuple[str, str]] = Counter()
        count: Counter[tuple[str, str]] = Counter()
        for number in numbers:
            group = self.schedule.groups[number]
            key = group.instruction.source, group.instruction.opcode
            busy[key] += group.busy_ns * len(self.positions)  # type: ignore[assignment]
            count[key] += 1
        return tuple(
            Evidence(text or opcode, source, count[source, opcode], ns / max(self.program.total_ns, 1))
            for (source, opcode), ns in busy.most_common(_LINES)
        )

    def line_names(self, numbers: Collection[int]) -> str:
        """Return the lines of instructions as words: `kernel.py:7 and kernel.py:9`."""
        instructions = self.kernel.instructions
        sources = dict.fromkeys(os.path.basename(instructions[number].source) for number in numbers)
        return " and ".join(sources)


def kernels_of(program: ProfiledProgram) -> Iterator[ProfiledKernel]:
    """Yield the kernels of a program, each once."""
    calls: dict[KernelProgram, list[int]] = {}
    for position, kernel in program.neff.kernels.items():
        calls.setdefault(kernel, []).append(position)
    for kernel, positions in calls.items():
        yield ProfiledKernel(program, kernel, positions)


ROWS = "kernel-rows"
_SHORT_ROW = 512
_LONGEST_ROW = 16 * 1024


def small_rows(kernel: ProfiledKernel) -> Finding:
    """Advise transfers of longer rows if the DMA engines bound a kernel."""
    share = kernel.busy_share(Engine.DMA)
    if share < _BOUND:
        return Silent(ROWS, f"{kernel.name}: the DMA engines work {format_percent(share)} of its time")
    instructions, facts = kernel.kernel.instructions, kernel.kernel.facts
    short = {
        number
        for number, each in enumerate(facts)
        if instructions[number].opcode == PLAIN_OPCODE and 0 < each.row_bytes < _SHORT_ROW
    }
    if not short:
        return Silent(ROWS, f"{kernel.name}: its transfers move rows of {_SHORT_ROW} bytes or more")
    groups = [group for group in neighbours(kernel.kernel, _LONGEST_ROW) if not short.isdisjoint(group)]
    if groups:
        moved = {number for group in groups for number in group}
        changed = merge(kernel.kernel, groups, kernel.machine, widens=True)
        row = max(facts[group[0]].row_bytes * len(group) for group in groups)
        remedy = f"move rows of {format_binary_size(row)} at once and work on their parts in SBUF"
    else:
        moved = short
        changed = with_rows(kernel.kernel, short, _SHORT_ROW, kernel.machine)
        remedy = (
            f"move rows of {_SHORT_ROW} bytes or more in the order of memory: another layout in HBM, or a transpose on"
            " the chip"
        )
    trial = kernel.trial(changed, is_bound=not groups)
    longest = max(facts[number].row_bytes for number in moved)
    if trial.gain is None or not trial.is_worth:
        return Silent(ROWS, f"{kernel.name}: rows of {longest} bytes, but longer: {trial.words}")
    return Advice(
        ROWS,
        f"Let {kernel.name} move longer rows",
        f"at {kernel.line_names(moved)}, {remedy}",
        trial.gain,
        f"engine model, the kernel with {_instructions(kernel, changed)}: {trial.words}",
        kernel.lines(moved, f"rows of {longest} bytes or less; the DMA engines work {format_percent(share)}"),
    )


def _instructions(kernel: ProfiledKernel, changed: KernelProgram) -> str:
    before, after = len(kernel.kernel.instructions), len(changed.instructions)
    return "as many instructions" if before == after else f"{after} instead of {before} instructions"


PSUM = "kernel-psum"


def waits_for_psum(kernel: ProfiledKernel) -> Finding:
    """Advise more memory in PSUM if products wait for the eviction of others."""
    waiting = [number for number, facts in enumerate(kernel.kernel.facts) if facts.bank_waits]
    if not waiting:
        return Silent(PSUM, f"{kernel.name}: no product waits for memory in PSUM")
    used = max((banks for _, banks in kernel.kernel.psum), default=1)
    banks = kernel.machine.costs.psum_banks
    times = banks // max(used, 1)
    if times < 2:
        return Silent(PSUM, f"{kernel.name}: its products fill {used} of {banks} banks of PSUM")
    trial = kernel.trial(with_banks(kernel.kernel, times))
    if trial.gain is None or not trial.is_worth:
        return Silent(
            PSUM, f"{kernel.name}: {used} of {banks} banks of PSUM in use; with more: {trial.words}"
        )
    share = format_percent(kernel.busy_share(Engine.TENSOR))
    return Advice(
        PSUM,
        f"Let {kernel.name} use more banks of PSUM, so that products go on while results are evicted",
        f"declare the tile in PSUM that {kernel.line_names(waiting)} writes inside of the loop, so that it gets another bank"
        f" each time; or use {times} tiles in turn",
        trial.gain,
        f"engine model, the kernel with {times} times the banks: {trial.words}",
        kernel.lines(
            waiting, f"waits for evictions, {used} of {banks} banks; the Tensor engine works {share}"
        ),
    )


SCALAR = "kernel-scalar"


def work_for_scalar(kernel: ProfiledKernel) -> Finding:
    """Advise the Scalar engine for instructions of the Vector engine if that is faster."""
    by_line: dict[str, list[int]] = {}
    for number, facts in enumerate(kernel.kernel.facts):
        if facts.could_ns >= 0 and kernel.schedule.groups[number].engine is Engine.VECTOR:
            by_line.setdefault(kernel.kernel.instructions[number].source, []).append(number)
    vector, scalar = (format_percent(kernel.busy_share(each)) for each in (Engine.VECTOR, Engine.SCALAR))
    busy = f"{kernel.name}: Vector works {vector}, Scalar {scalar}"
    if not by_line:
        return Silent(SCALAR, f"{busy}; Scalar can run no instruction of Vector")
    moved = _moved(kernel, list(by_line.values()))
    changed = on_scalar(kernel.kernel, moved)
    trial = kernel.trial(changed)
    if trial.gain is None or not trial.is_worth:
        return Silent(SCALAR, f"{busy}; with work of Vector on Scalar: {trial.words}")
    numbers = next(numbers for numbers in by_line.values() if not moved.isdisjoint(numbers))
    which = "the calls" if len(moved) == len(numbers) else "every second call"
    return Advice(
        SCALAR,
        f"Let the Scalar engine do work of the Vector engine in {kernel.name}",
        f"at {kernel.line_names(moved)}, make {which} with engine=nisa.engine.scalar (nisa.tensor_copy, nisa.tensor_scalar)",
        trial.gain,
        f"engine model, the kernel with these instructions on Scalar: {trial.words}",
        kernel.lines(moved, f"on Vector, which works {vector}; Scalar works {scalar}"),
    )


def _moved(kernel: ProfiledKernel, lines: Sequence[Sequence[int]]) -> set[int]:
    """Return the instructions to move: all or every second one of the line for which the kernel gets fastest."""
    groups = kernel.schedule.groups
    busiest = sorted(lines, key=lambda line: -sum(groups[number].busy_ns for number in line))[:_LINES]
    choices = [numbers[step - 1 :: step] for numbers in busiest for step in (1, 2)]
    return set(min(choices, key=lambda choice: kernel.time_of(on_scalar(kernel.kernel, choice))))


SPILLS = "kernel-spills"


def spills(kernel: ProfiledKernel) -> Finding:
    """Advise to keep values in SBUF that a kernel stores and loads again, if there is room."""
    instructions, facts = kernel.kernel.instructions, kernel.kernel.facts
    stores: dict[int, dict[int, int]] = {}
    origins: dict[int, int] = {}
    for number, (instruction, each) in enumerate(zip(instructions, facts, strict=True)):
        if each.tensor < 0:
            continue
        if instruction.write_bytes:
            stores.setdefault(each.tensor, {})[each.offset] = number
        elif each.tensor in stores:
            earlier = stores[each.tensor]
            origins[number] = earlier.get(each.offset, max(earlier.values()))
    if not origins:
        return Silent(SPILLS, f"{kernel.name}: it loads nothing that it has stored")
    again = {facts[number].tensor for number in origins}
    stored = [number for tensor in again for number in stores[tensor].values()]
    nbytes = sum(instructions[number].write_bytes for number in stored)
    used = max((level for _, level in kernel.kernel.sbuf), default=0)
    room = kernel.machine.sbuf_bytes - used
    moved = format_binary_size(nbytes)
    if nbytes > room:
        return Silent(
            SPILLS,
            f"{kernel.name}: it loads {moved} that it has stored; SBUF has room for {format_binary_size(max(room, 0))}",
        )
    scratch = [number for number in stored if facts[number].is_scratch]
    trial = kernel.trial(leave_out(kernel.kernel, [*origins, *scratch], origins))
    if trial.gain is None or not trial.is_worth:
        return Silent(SPILLS, f"{kernel.name}: it loads {moved} that it has stored; without: {trial.words}")
    return Advice(
        SPILLS,
        f"Let {kernel.name} keep values in SBUF instead of storing and loading them",
        f"keep the tiles that {kernel.line_names(stored)} stores, and use them in place of what {kernel.line_names(origins)} loads",
        trial.gain,
        f"engine model, the kernel without these transfers: {trial.words}",
        kernel.lines(
            [*stored, *origins],
            f"{moved} to HBM and back; SBUF holds {format_binary_size(used)} of"
            f" {format_binary_size(kernel.machine.sbuf_bytes)}",
        ),
    )


PARTITIONS = "idle-partitions"
_HALF = 64
_NEARLY_ALL = 0.9
_WORKING = frozenset({Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD, Engine.DMA})


def unused_partitions(kernel: ProfiledKernel) -> Finding:
    """Advise tiles of all partitions if a kernel works on half of them or fewer."""
    facts, total = kernel.kernel.facts, kernel.machine.costs.partitions
    repeated = _repeated(kernel)
    numbers = [number for each in repeated for number in each]
    if not numbers:
        return Silent(
            PARTITIONS, f"{kernel.name}: no repeated instruction works on {_HALF} partitions or fewer"
        )
    groups = []
    for each in repeated:
        together = total // facts[each[0]].partitions
        groups += [each[first : first + together] for first in range(0, len(each), together)]
    changed = merge(kernel.kernel, [g for g in groups if len(g) > 1], kernel.machine, widens=False)
    trial = kernel.trial(changed)
    fewest = min(facts[number].partitions for number in numbers)
    if trial.gain is None or not trial.is_worth:
        return Silent(PARTITIONS, f"{kernel.name}: tiles of {fewest} partitions, but of more: {trial.words}")
    return Advice(
        PARTITIONS,
        f"Let {kernel.name} work on tiles of {total} partitions instead of {fewest}",
        f"at {kernel.line_names(numbers)}, take {total // fewest} tiles at once: their rows fit into the {total} partitions",
        trial.gain,
        f"engine model, the kernel with {_instructions(kernel, changed)}: {trial.words}",
        kernel.lines(numbers, f"{fewest} of {total} partitions"),
    )


def _repeated(kernel: ProfiledKernel) -> list[list[int]]:
    """Return the instructions on few partitions that a loop repeats, by their place in the loop.

    The loop is the longest with nearly all of their work; a line with twice as many instructions has two places in it.
    """
    by_line: dict[tuple[str, str, int, bool], list[int]] = {}
    for number, (instruction, facts) in enumerate(
        zip(kernel.kernel.instructions, kernel.kernel.facts, strict=True)
    ):
        if instruction.engine in _WORKING and 0 < facts.partitions <= _HALF:
            key = instruction.source, instruction.opcode, facts.partitions, instruction.write_bytes > 0
            by_line.setdefault(key, []).append(number)
    groups = kernel.schedule.groups
    busy = {key: sum(groups[number].busy_ns for number in numbers) for key, numbers in by_line.items()}
    for length in sorted({len(numbers) for numbers in by_line.values()} - {1}, reverse=True):
        inside = [key for key, numbers in by_line.items() if len(numbers) % length == 0]
        if sum(busy[key] for key in inside) >= _NEARLY_ALL * sum(busy.values()):
            return [
                by_line[key][first :: len(by_line[key]) // length]
                for key in inside
                for first in range(len(by_line[key]) // length)
            ]
    return []


KERNEL_RULES = (small_rows, waits_for_psum, work_for_scalar, spills, unused_partitions)


def kernel_findings(program: ProfiledProgram) -> list[Finding]:
    """Return what the rules say of the kernels of a program."""
    return [rule(kernel) for kernel in kernels_of(program) for rule in KERNEL_RULES]
