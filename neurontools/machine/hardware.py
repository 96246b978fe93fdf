"""The devices and cores of a machine, and the error counters of a device under the names of the driver and neuron-monitor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class Layout:
    """The resources of a machine. Logical core ids count through the devices: device = core // cores_per_device.

    `links` are the neighbours of each device; empty where they are not needed.
    """

    device_count: int
    cores_per_device: int
    memory_bytes: int
    links: tuple[tuple[int, ...], ...] = ()

    @property
    def core_count(self) -> int:
        """Logical cores of the whole machine."""
        return self.device_count * self.cores_per_device

    def device_of(self, core: int) -> int:
        """Return the device of a core."""
        return core // self.cores_per_device

    def cores_of(self, device: int) -> range:
        """Return the cores of a device."""
        return range(device * self.cores_per_device, (device + 1) * self.cores_per_device)


def index_range(name: str, count: int) -> str:
    """Return the indices of `count` devices or cores in words: `devices 0-15`."""
    return f"{name} 0 only" if count == 1 else f"{name}s 0-{count - 1}"


class HardwareCounter(StrEnum):
    """Memory errors that a device counts (AWS Neuron documentation, neuron-monitor and sysfs user guides)."""

    MEM_ECC_CORRECTED = "mem_ecc_corrected"
    MEM_ECC_UNCORRECTED = "mem_ecc_uncorrected"
    MEM_ECC_REPAIRABLE_UNCORRECTED = "mem_ecc_repairable_uncorrected"
    SRAM_ECC_CORRECTED = "sram_ecc_corrected"
    SRAM_ECC_UNCORRECTED = "sram_ecc_uncorrected"


class HardwareCounters(Struct, frozen=True, gc=False):
    """Errors of one device since its counters were last reset."""

    mem_ecc_corrected: int = 0
    mem_ecc_uncorrected: int = 0
    mem_ecc_repairable_uncorrected: int = 0
    sram_ecc_corrected: int = 0
    sram_ecc_uncorrected: int = 0


NO_ERRORS = HardwareCounters()


class CoreTotals(Struct, frozen=True, gc=False):
    """What exited processes did on one core: with `CoreUse` of the running ones, the core's whole history.

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
