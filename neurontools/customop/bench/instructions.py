"""Cycles of single instructions, as a GPSIMD core might take them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.customop.bench.arithmetic_rates import ArithmeticRates
    from neurontools.customop.bench.dialects import Dialect

COPIES = frozenset({"memcpy", "memmove", "memset"})
_OURS = re.compile(r"_ZNK?(?:St)?(?:11neurontools|5torch|3c10)|__sanitizer|__cxa|__stack_chk|_Unwind")
_OPERATORS = {"_Znwm": "new", "_Znam": "new[]", "_ZdlP": "delete", "_ZdaP": "delete[]"}
_NO_OPERAND = re.compile(r"(?:lea|push|pop|call|jmp|prefetch)")
_OPERANDS = re.compile(r"(?:[^,()]|\([^)]*\))+")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a dialect: its name, and its operands as they are written."""

    dialect: Dialect
    name: str
    operands: tuple[str, ...]

    @property
    def ends_block(self) -> bool:
        """Whether what follows may run another number of times."""
        return self.dialect.ends.match(self.name) is not None

    @property
    def compares(self) -> bool:
        """Whether it only sets flags; a branch right after it is one instruction with it."""
        return self.dialect.compare.match(self.name) is not None

    @property
    def callee(self) -> str:
        """The function that it calls, or jumps to as its last act; "" when it does neither, or by a pointer."""
        if self.name not in self.dialect.calls or not self.operands:
            return ""
        symbol = self.operands[0].partition("@")[0]
        return "" if symbol.startswith(("*", ".")) else symbol


def parse_instruction(text: str, dialect: Dialect) -> Instruction:
    """Read an instruction, comments left out."""
    name, _, rest = text.split(dialect.comment, 1)[0].strip().partition("\t")
    if " " in name:  # a prefix, or blanks between
        name, _, rest = name.partition(" ")
    return Instruction(dialect, name, tuple(operand.strip() for operand in _OPERANDS.findall(rest)))


def function_name(symbol: str) -> str:
    """Return a library function's name as a source has it: `__expf_finite` is `expf`, `_Znwm` is `new`."""
    return _OPERATORS.get(symbol[:5].removesuffix("v")) or symbol.removeprefix("__").removesuffix("_finite")


def cycles_of(instruction: Instruction, previous: Instruction | None, rates: ArithmeticRates) -> int:
    """Return what an instruction takes, without what it calls.

    Args:
        instruction: the instruction.
        previous: the one before it in its block, None for the first.
        rates: costs.
    """
    name, dialect = instruction.name, instruction.dialect
    if dialect.free.match(name) or dialect.landing.match(name) or _copies_register(instruction):
        return 0
    if previous is not None and previous.compares and dialect.branch.match(name):
        return 0
    cycles = 1
    if dialect.divide.match(name):
        cycles = rates.divide_cycles
    elif dialect.square_root.match(name):
        cycles = rates.square_root_cycles
    return cycles + _memory_cycles(instruction)


def call_cycles(symbol: str, defined: frozenset[str], rates: ArithmeticRates) -> int:
    """Return what a called function takes, 0 when its own code is counted, or has a rate of its own.

    Args:
        symbol: the function.
        defined: what the kernel's sources define.
        rates: costs.
    """
    if not symbol or symbol in defined or _OURS.match(symbol) or symbol in COPIES:
        return 0
    name = function_name(symbol)
    for form in (name, name.removesuffix("f"), name.removesuffix("l")):
        if form in rates.function_cycles:
            return rates.function_cycles[form]
    return rates.other_function_cycles


def _memory_cycles(instruction: Instruction) -> int:
    """Return what an operand in memory takes beside: a load, and a store where it is what the instruction writes."""
    name, operands, dialect = instruction.name, instruction.operands, instruction.dialect
    places = [position for position, operand in enumerate(operands) if "(" in operand]
    if not dialect.reads_memory or not places or dialect.copy.match(name) or _NO_OPERAND.match(name):
        return 0
    writes = places[-1] == len(operands) - 1 and len(operands) > 1 and not instruction.compares
    return 2 if writes else 1


def _copies_register(instruction: Instruction) -> bool:
    """Return whether it copies a register, or makes one zero."""
    name, operands, dialect = instruction.name, instruction.operands, instruction.dialect
    if len(operands) != 2 or not dialect.register.match(operands[0]):
        return False
    if dialect.zeroing.match(name):
        return operands[0] == operands[1]
    plain = dialect.register.match(operands[1]) or dialect.zero.match(operands[1])
    return plain is not None and dialect.copy.match(name) is not None
