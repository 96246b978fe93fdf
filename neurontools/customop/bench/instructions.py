"""Cycles of single instructions of x86-64 as compilers write them (AT&T syntax), as a GPSIMD core might take them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.customop.bench.arithmetic_rates import ArithmeticRates

COPIES = frozenset({"memcpy", "memmove", "memset"})
_OURS = re.compile(r"_ZNK?(?:St)?(?:11neurontools|5torch|3c10)|__sanitizer|__cxa|__stack_chk|_Unwind")
_OPERATORS = {"_Znwm": "new", "_Znam": "new[]", "_ZdlP": "delete", "_ZdaP": "delete[]"}
_ENDS = re.compile(r"(?:j\w+|ret\w*|ud2|hlt)\Z")
_FREE = re.compile(r"(?:nop\w*|endbr64|data16|cs|lock|rep|repz|notrack)\Z")
_ZEROING = re.compile(r"v?(?:xor[lq]|pxor|xorp[sd])\Z")
_COPY = re.compile(r"v?mov[a-z0-9]*\Z")
_COMPARE = re.compile(r"(?:cmp|test)[bwlq]\Z|v?u?comis[sd]\Z")
_DIVIDE = re.compile(r"i?div[bwlq]\Z|v?div[sp][sd]\Z")
_SQUARE_ROOT = re.compile(r"v?sqrt[sp][sd]\Z")
_NO_OPERAND = re.compile(r"(?:lea|push|pop|call|jmp|prefetch)")
_OPERANDS = re.compile(r"(?:[^,()]|\([^)]*\))+")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: its name, and its operands as they are written."""

    name: str
    operands: tuple[str, ...]

    @property
    def ends_block(self) -> bool:
        """Whether what follows may run another number of times."""
        return _ENDS.match(self.name) is not None

    @property
    def compares(self) -> bool:
        """Whether it only sets flags; a branch right after it is one instruction with it."""
        return _COMPARE.match(self.name) is not None

    @property
    def callee(self) -> str:
        """The function that it calls, or jumps to as its last act; "" when it does neither, or by a pointer."""
        if self.name not in {"call", "callq", "jmp"} or not self.operands:
            return ""
        symbol = self.operands[0].partition("@")[0]
        return "" if symbol.startswith(("*", ".")) else symbol


def parse_instruction(text: str) -> Instruction:
    """Read an instruction, comments left out."""
    name, _, rest = text.split("#", 1)[0].strip().partition("\t")
    if " " in name:  # a prefix, or blanks between
        name, _, rest = name.partition(" ")
    return Instruction(name, tuple(operand.strip() for operand in _OPERANDS.findall(rest)))


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
    name, operands = instruction.name, instruction.operands
    if _FREE.match(name):
        return 0
    if name.startswith("j") and previous is not None and previous.compares:
        return 0
    memory = [position for position, operand in enumerate(operands) if _in_memory(operand)]
    if not memory and len(operands) == 2 and _of_registers(name, operands):
        return 0
    cycles = 1
    if _DIVIDE.match(name):
        cycles = rates.divide_cycles
    elif _SQUARE_ROOT.match(name):
        cycles = rates.square_root_cycles
    if memory and not _COPY.match(name) and not _NO_OPERAND.match(name):
        stores = memory[-1] == len(operands) - 1 and len(operands) > 1 and not instruction.compares
        cycles += 2 if stores else 1
    return cycles


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


def _in_memory(operand: str) -> bool:
    return "(" in operand


def _of_registers(name: str, operands: tuple[str, ...]) -> bool:
    """Return whether it copies a register, or makes one zero."""
    if not all(operand.startswith("%") for operand in operands):
        return False
    if _ZEROING.match(name):
        return operands[0] == operands[1]
    return _COPY.match(name) is not None
