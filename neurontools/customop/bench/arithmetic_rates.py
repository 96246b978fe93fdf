"""What own arithmetic takes on a GPSIMD core, from `fixtures/gpsimd/arithmetic.yaml`: an estimate in cycles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from neurontools import gpsimd

if TYPE_CHECKING:
    from neurontools.customop.calls import CoreWork


@dataclass(frozen=True, slots=True)
class ArithmeticRates:
    """How many cycles things take (`fixtures/gpsimd/arithmetic.yaml`).

    Args:
        clock_ghz: cycles a nanosecond, as of the vectors (`rates.yaml`).
        included_per_launch: cycles that the time of a launch holds on each core.
        included_per_transfer: cycles that the latency of a transfer holds.
        included_per_byte: cycles that the rate of transfers holds for each byte.
        included_per_access: cycles that the rate of element accesses holds for each.
        divide_cycles: of a division.
        square_root_cycles: of a square root.
        function_cycles: of functions of the C library, by their name for doubles.
        other_function_cycles: of other functions that the kernel's sources do not define.
        copied_bytes_per_cycle: of memcpy and the like.
    """

    clock_ghz: float
    included_per_launch: float
    included_per_transfer: float
    included_per_byte: float
    included_per_access: float
    divide_cycles: int
    square_root_cycles: int
    function_cycles: dict[str, int]
    other_function_cycles: int
    copied_bytes_per_cycle: int


@cache
def arithmetic_rates() -> ArithmeticRates:
    """Return the rates."""
    document = gpsimd.read_fixture("arithmetic.yaml")
    included, instructions = document["included"], document["instruction_cycles"]
    return ArithmeticRates(
        clock_ghz=gpsimd.read_fixture("rates.yaml")["compute"]["clock_ghz"],
        included_per_launch=included["cycles_per_launch"],
        included_per_transfer=included["cycles_per_transfer"],
        included_per_byte=included["cycles_per_transferred_byte"],
        included_per_access=included["cycles_per_element_access"],
        divide_cycles=instructions["divide"],
        square_root_cycles=instructions["square_root"],
        function_cycles=document["function_cycles"],
        other_function_cycles=document["other_function_cycles"],
        copied_bytes_per_cycle=document["copied_bytes_per_cycle"],
    )


def included_cycles(work: CoreWork) -> float:
    """Return the cycles of own arithmetic that the rates of what a core did to memory hold already."""
    rates = arithmetic_rates()
    return (
        rates.included_per_launch
        + work.transfers * rates.included_per_transfer
        + work.transferred_bytes * rates.included_per_byte
        + work.element_accesses * rates.included_per_access
    )


def own_ns(work: CoreWork, cycles: float) -> float:
    """Return the time that a core's own arithmetic adds to that of what it did to memory.

    Args:
        work: what it did to memory.
        cycles: what its own arithmetic takes.
    """
    return max(0.0, cycles - included_cycles(work)) / arithmetic_rates().clock_ghz
