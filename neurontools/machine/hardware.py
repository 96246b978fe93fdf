"""Error counters of a device, under the names of the driver's sysfs tree and of neuron-monitor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class HardwareCounter(StrEnum):
    """Memory errors that a device counts (system-tools.md sections 3.3 and 4)."""

    MEM_ECC_CORRECTED = "mem_ecc_corrected"
    MEM_ECC_UNCORRECTED = "mem_ecc_uncorrected"
    MEM_ECC_REPAIRABLE_UNCORRECTED = "mem_ecc_repairable_uncorrected"
    SRAM_ECC_CORRECTED = "sram_ecc_corrected"
    SRAM_ECC_UNCORRECTED = "sram_ecc_uncorrected"


@dataclass(frozen=True, slots=True)
class HardwareCounters:
    """Errors of one device since its counters were last reset."""

    mem_ecc_corrected: int = 0
    mem_ecc_uncorrected: int = 0
    mem_ecc_repairable_uncorrected: int = 0
    sram_ecc_corrected: int = 0
    sram_ecc_uncorrected: int = 0


NO_ERRORS = HardwareCounters()


@dataclass(frozen=True, slots=True)
class CoreTotals:
    """What the processes that are gone did on one core: with `CoreUse` of the living, the core's whole history.

    `failures` are pairs of NRT status number and executions that ended so; `executions` counts those too.
    """

    core: int
    busy_ns: int = 0
    executions: int = 0
    flops: int = 0
    gpsimd_ns: int = 0
    model_loads: int = 0
    failures: tuple[tuple[int, int], ...] = ()

    def plus(self, other: CoreTotals) -> CoreTotals:
        """Return what both did together on this core."""
        failures = dict(self.failures)
        for status, count in other.failures:
            failures[status] = failures.get(status, 0) + count
        return CoreTotals(
            self.core,
            self.busy_ns + other.busy_ns,
            self.executions + other.executions,
            self.flops + other.flops,
            self.gpsimd_ns + other.gpsimd_ns,
            self.model_loads + other.model_loads,
            tuple(sorted(failures.items())),
        )


def core_totals_from_json(data: dict[str, Any]) -> CoreTotals:
    """Return the totals of a core from their JSON form.

    Raises:
        KeyError, TypeError, ValueError: the value is none.
    """
    return CoreTotals(**{**data, "failures": pairs(data["failures"])})


def pairs(data: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return pairs of numbers from their JSON form."""
    return tuple((first, second) for first, second in data)
