"""Counters in compiled code: assembly in, the same with a counter at each basic block out, and what the blocks hold.

Counting is added after the compiler has done all of its work, so that what is counted is the code that would run without:
calls of a coverage hook would make the compiler save registers around each.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.customop.bench.instructions import (
    COPIES,
    Instruction,
    call_cycles,
    cycles_of,
    parse_instruction,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neurontools.customop.bench.arithmetic_rates import ArithmeticRates
    from neurontools.customop.bench.dialects import Dialect

COUNTERS = "neurontools_counts"
"""Section of the counters, one of 8 bytes for each block; `counting.cpp` finds it by this name."""
ADDRESSES = ".debug_neurontools"
"""Section of the addresses of segments, 8 bytes each. The linker takes it for debug data: it may name discarded code."""

_FILE = re.compile(r'\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"(?:\s+"((?:[^"\\]|\\.)*)")?')
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_LABEL = re.compile(r"([\w.$]+):")
_LOCAL = re.compile(r"\.L[\w.$]+")
_DATA = (
    ".long",
    ".xword",
    ".hword",
    ".2byte",
    ".quad",
    ".uleb128",
    ".byte",
    ".word",
    ".value",
    ".4byte",
    ".8byte",
)
_DEBUG = re.compile(r"\.section\s+\.debug")
_SECTION = re.compile(r"\.(?:section|text|data|bss|pushsection|popsection)\b")


@dataclass(slots=True)
class Segment:
    """Instructions of a block that come from one line.

    Args:
        path: the file, "" when the compiler does not tell.
        line: the line in it.
        number: its position in the section of addresses.
        cycles: what one pass takes.
        calls: library functions that it calls, each with what a call takes.
    """

    path: str
    line: int
    number: int
    cycles: float = 0.0
    calls: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class Block:
    """What a counter counts: instructions that always run together, or bytes that one call copies."""

    segments: list[Segment] = field(default_factory=list)


@dataclass(slots=True)
class CountedUnit:
    """A unit with counters: its assembly, and its blocks in the order of the counters."""

    text: str
    blocks: list[Block]


def defined_symbols(text: str) -> frozenset[str]:
    """Return the functions that a unit's assembly defines."""
    return frozenset(
        found[1]
        for line in text.splitlines()
        if (found := _LABEL.match(line)) is not None and not found[1].startswith(".L")
    )


def count_blocks(
    text: str, directory: str, defined: frozenset[str], rates: ArithmeticRates, dialect: Dialect
) -> CountedUnit:
    """Put counters into a unit.

    Args:
        text: its assembly.
        directory: where it was compiled; relative paths begin there.
        defined: functions that this or another unit defines.
        rates: what instructions take.
        dialect: which assembly it is.
    """
    return _Rewriting(directory, _targets(text), defined, rates, dialect).run(text)


def _targets(text: str) -> frozenset[str]:
    """Return the local labels that code or data refers to: only there may a block begin."""
    found: set[str] = set()
    in_debug = False
    for line in text.splitlines():
        word = line.strip()
        if _SECTION.match(word):
            in_debug = _DEBUG.match(word) is not None
        elif not in_debug and line.startswith("\t") and (not word.startswith(".") or word.startswith(_DATA)):
            found.update(_LOCAL.findall(word))
    return frozenset(found)


def _unescaped(text: str) -> str:
    """Return a name as it is: assemblers write bytes that are no ASCII in octal."""
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 8)) if found[1][0].isdigit() else found[1], text)
    return plain.encode("latin-1", "replace").decode("utf-8", "surrogateescape") if plain != text else text


class _Rewriting:
    def __init__(
        self,
        directory: str,
        targets: frozenset[str],
        defined: frozenset[str],
        rates: ArithmeticRates,
        dialect: Dialect,
    ) -> None:
        self._dialect = dialect
        self._directory = directory
        self._targets = targets
        self._defined = defined
        self._rates = rates
        self._files: dict[str, str] = {}
        self._place = ("", 0)
        self._blocks: list[Block] = []
        self._block: Block | None = None
        self._previous: Instruction | None = None
        self._labels = 0

    def run(self, text: str) -> CountedUnit:
        lines = [written for line in text.splitlines() for written in self._line(line)]
        return CountedUnit("\n".join((*lines, *self._tail(), "")), self._blocks)

    def _line(self, line: str) -> Iterator[str]:
        word = line.strip()
        label = _LABEL.match(line)
        if label is not None:
            if not label[1].startswith(".L") or label[1] in self._targets:
                self._block = None
        elif word.startswith("."):
            self._directive(word)
        elif word and line[0] in "\t " and not word.startswith(("#", "/")):
            yield from self._instruction(parse_instruction(line, self._dialect))
        yield line

    def _directive(self, word: str) -> None:
        if (found := _LOC.match(word)) is not None:
            self._place = (self._files.get(found[1], ""), int(found[2]))
        elif (found := _FILE.match(word)) is not None:
            path = os.path.join(*(_unescaped(part) for part in found.group(2, 3) if part is not None))
            self._files[found[1]] = os.path.normpath(os.path.join(self._directory, path))

    def _instruction(self, instruction: Instruction) -> Iterator[str]:
        if self._block is None:
            if self._dialect.landing.match(instruction.name):
                return
            yield self._dialect.count.format(8 * len(self._blocks))
            self._block = self._new_block()
        block = self._block
        if not block.segments or (block.segments[-1].path, block.segments[-1].line) != self._place:
            yield self._begin_segment(block)
        if instruction.callee in COPIES:
            yield self._dialect.count_bytes.format(8 * len(self._blocks))
            yield self._begin_segment(self._new_block())
            self._blocks[-1].segments[0].cycles = 1 / self._rates.copied_bytes_per_cycle
        self._add(block.segments[-1], instruction)
        self._previous = instruction
        if instruction.ends_block:
            self._block = None

    def _new_block(self) -> Block:
        self._blocks.append(Block())
        self._previous = None
        return self._blocks[-1]

    def _begin_segment(self, block: Block) -> str:
        block.segments.append(Segment(*self._place, self._labels))
        self._labels += 1
        return f".Lneurontools_segment_{self._labels - 1}:"

    def _add(self, segment: Segment, instruction: Instruction) -> None:
        segment.cycles += cycles_of(instruction, self._previous, self._rates)
        called = call_cycles(instruction.callee, self._defined, self._rates)
        if called:
            segment.cycles += called
            segment.calls.append((instruction.callee, called))

    def _tail(self) -> Iterable[str]:
        yield f'\t.section\t{ADDRESSES},"",@progbits'
        for index in range(self._labels):
            yield f"\t.quad\t.Lneurontools_segment_{index}"
        yield f'\t.section\t{COUNTERS},"aw",@progbits'
        yield "\t.balign\t8"
        yield ".Lneurontools_counts:"
        yield f"\t.zero\t{8 * len(self._blocks)}"
        yield "\t.data\n\t.balign\t8"
        yield ".Lneurontools_scratch:"
        yield "\t.zero\t8"
