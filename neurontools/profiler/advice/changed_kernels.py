"""Kernels as they would be after a change: with fewer or wider transfers, other engines, or more memory.

A changed kernel keeps the order of its instructions. What one waited for and now comes later is no longer waited for:
the change gives each value a place of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.compiler.engines import dma
from neurontools.compiler.engines.dma import PLAIN_OPCODE
from neurontools.compiler.engines.instructions import KernelProgram
from neurontools.compiler.engines.placement import Engine

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from neurontools.compiler.engines.instructions import Instruction, InstructionFacts
    from neurontools.compiler.engines.modelled_core import ModelledCore


def rebuilt(
    kernel: KernelProgram,
    order: Iterable[int],
    instructions: Mapping[int, Instruction],
    replaced_by: Mapping[int, Sequence[int]],
) -> KernelProgram:
    """Return a kernel of some of the instructions.

    Args:
        kernel: the kernel.
        order: numbers of the instructions that stay, in order.
        instructions: changed ones, by number.
        replaced_by: by number of an instruction that is left out, those that others wait for in its place.
    """
    numbers: dict[int, int] = {}
    made: list[Instruction] = []
    facts: list[InstructionFacts] = []
    for number in order:
        instruction = instructions.get(number, kernel.instructions[number])
        waits = {numbers[each] for each in _followed(instruction.reads, replaced_by) if each in numbers}
        banks = {
            numbers[each]
            for each in _followed(kernel.facts[number].bank_waits, replaced_by)
            if each in numbers
        }
        numbers[number] = len(made)
        made.append(replace(instruction, reads=tuple(sorted(waits)), writes=(len(made),)))
        facts.append(kernel.facts[number]._replace(bank_waits=tuple(sorted(banks))))
    return KernelProgram(tuple(made), tuple(facts))


def _followed(waits: Iterable[int], replaced_by: Mapping[int, Sequence[int]]) -> set[int]:
    remaining: set[int] = set()
    pending = list(waits)
    while pending:
        number = pending.pop()
        if number in replaced_by:
            pending += [each for each in replaced_by[number] if each not in remaining]
        else:
            remaining.add(number)
    return remaining


def merge(
    kernel: KernelProgram, groups: Sequence[Sequence[int]], machine: ModelledCore, *, widens: bool
) -> KernelProgram:
    """Return a kernel in which each group of instructions is one.

    Args:
        kernel: the kernel.
        groups: numbers of the instructions, in order.
        machine: the core.
        widens: whether transfers move longer rows; else they move more rows, and other instructions work on more
            partitions in the same time.
    """
    replaced_by: dict[int, Sequence[int]] = {}
    changed: dict[int, Instruction] = {}
    for group in groups:
        members = [kernel.instructions[number] for number in group]
        is_store = widens and members[0].write_bytes > 0
        position = group[-1] if is_store else group[0]
        waits = {wait for member in members for wait in member.reads} - set(group)
        merged = replace(
            members[0],
            reads=tuple(sorted(waits)),
            flops=sum(member.flops for member in members),
            read_bytes=sum(member.read_bytes for member in members),
            write_bytes=sum(member.write_bytes for member in members),
        )
        if merged.engine is Engine.DMA:
            row = kernel.facts[group[0]].row_bytes * (len(group) if widens else 1)
            merged.tile_ns = dma.transfer_ns(machine, merged.read_bytes + merged.write_bytes, row)
        changed[position] = merged
        replaced_by.update({number: (position,) for number in group if number != position})
    kept = (number for number in range(len(kernel.instructions)) if number not in replaced_by)
    return rebuilt(kernel, kept, changed, replaced_by)


def leave_out(kernel: KernelProgram, numbers: Collection[int], origins: Mapping[int, int]) -> KernelProgram:
    """Return a kernel without transfers; what waited for one waits for what the transfer waited for.

    Args:
        kernel: the kernel.
        numbers: of the transfers.
        origins: by number of a load the store that it reads back.
    """
    replaced_by: dict[int, Sequence[int]] = {}
    for number in numbers:
        stored = origins.get(number, number)
        replaced_by[number] = kernel.instructions[stored].reads
    kept = (number for number in range(len(kernel.instructions)) if number not in replaced_by)
    return rebuilt(kernel, kept, {}, replaced_by)


def with_rows(
    kernel: KernelProgram, numbers: Iterable[int], row_bytes: int, machine: ModelledCore
) -> KernelProgram:
    """Return a kernel with longer rows in some transfers."""
    changed = {}
    for number in numbers:
        instruction = kernel.instructions[number]
        nbytes = instruction.read_bytes + instruction.write_bytes
        changed[number] = replace(instruction, tile_ns=dma.transfer_ns(machine, nbytes, row_bytes))
    return rebuilt(kernel, range(len(kernel.instructions)), changed, {})


def on_scalar(kernel: KernelProgram, numbers: Iterable[int]) -> KernelProgram:
    """Return a kernel that runs some instructions on the Scalar engine."""
    changed = {
        number: replace(
            kernel.instructions[number], engine=Engine.SCALAR, tile_ns=kernel.facts[number].could_ns
        )
        for number in numbers
    }
    return rebuilt(kernel, range(len(kernel.instructions)), changed, {})


def with_banks(kernel: KernelProgram, times: int) -> KernelProgram:
    """Return a kernel that has several times the memory in PSUM, so that products wait for earlier evictions."""
    waiting = [number for number, facts in enumerate(kernel.facts) if facts.bank_waits]
    changed = {}
    for position, number in enumerate(waiting):
        instruction, own = kernel.instructions[number], kernel.facts[number].bank_waits
        earlier = kernel.facts[waiting[position - times + 1]].bank_waits if position >= times - 1 else ()
        waits = (set(instruction.reads) - set(own)) | set(earlier)
        changed[number] = replace(instruction, reads=tuple(sorted(waits)))
    return rebuilt(kernel, range(len(kernel.instructions)), changed, {})


def neighbours(kernel: KernelProgram, longest_bytes: int) -> list[list[int]]:
    """Return groups of transfers of one line that move neighbouring parts of the same rows of a tensor."""
    groups: list[list[int]] = []
    latest: dict[tuple[str, int, int], tuple[int, list[int]]] = {}
    for number, (instruction, facts) in enumerate(zip(kernel.instructions, kernel.facts, strict=True)):
        if instruction.opcode != PLAIN_OPCODE or facts.tensor < 0:
            continue
        key = instruction.source, facts.tensor, facts.partitions
        end, group = latest.get(key, (-1, []))
        row = facts.row_bytes
        if end != facts.offset or (len(group) + 1) * row > longest_bytes:
            group = []
            groups.append(group)
        group.append(number)
        latest[key] = facts.offset + row, group
    return [group for group in groups if len(group) > 1]
