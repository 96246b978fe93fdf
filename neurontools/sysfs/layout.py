"""Which files the driver shows of a device and of a core, and what becomes of a write to each (section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.sysfs.generation import Generation

CORE_MEMORY = (
    "collectives",
    "constants",
    "dma_rings",
    "driver_memory",
    "model_code",
    "model_shared_scratchpad",
    "nonshared_scratchpad",
    "notifications",
    "runtime_memory",
    "tensors",
    "uncategorized",
)
HOST_MEMORY = (
    "application_memory",
    "constants",
    "dma_buffers",
    "dma_rings",
    "driver_memory",
    "notifications",
    "tensors",
    "uncategorized",
)
OTHER_INFO = (
    "flop_count",
    "inference_count",
    "model_load_count",
    "nc_time_in_use",
    "reset_fail_count",
    "reset_req_count",
)

METRIC_MODE = 0o644
READ_ONLY = 0o444
RESET_MODE = 0o600
DEVICE_MODE = 0o666

_POWER_MANAGEMENT = (
    ("async", "disabled\n"),
    ("control", "auto\n"),
    ("runtime_active_kids", "0\n"),
    ("runtime_active_time", "0\n"),
    ("runtime_enabled", "disabled\n"),
    ("runtime_status", "unsupported\n"),
    ("runtime_suspended_time", "0\n"),
    ("runtime_usage", "0\n"),
)


class Role(StrEnum):
    """What a write to a file does.

    Every write to `TOTAL`, `PRESENT` and `PEAK` sets the number to 0, one to `HARDWARE` an error counter of the
    device; `RESET` resets the device, `NOTIFY` takes -1 or 0; of a `FIXED` file the old text comes back.
    """

    FIXED = "fixed"
    TOTAL = "total"
    PRESENT = "present"
    PEAK = "peak"
    HARDWARE = "hardware"
    NOTIFY = "notify"
    RESET = "reset"


COUNTER = (Role.TOTAL, Role.PRESENT)
USAGE = (Role.TOTAL, Role.PRESENT, Role.PEAK)


@dataclass(frozen=True, slots=True)
class Metric:
    """A number in a directory of its own, with a file for each role."""

    directory: str
    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A file with a text of its own."""

    path: str
    mode: int
    role: Role = Role.FIXED


@dataclass(frozen=True, slots=True)
class Layout:
    """The files below a directory, relative to it: those of numbers, then others."""

    metrics: tuple[Metric, ...]
    leaves: tuple[Leaf, ...]


@cache
def core_layout(driver: Generation) -> Layout:
    """Return the files of `neuron_core<i>`."""
    memory = "stats/memory_usage/device_mem"
    metrics = (
        *(Metric(f"stats/status/{name}", COUNTER) for name in driver.statuses),
        Metric(memory, USAGE),
        *(Metric(f"{memory}/{name}", USAGE) for name in CORE_MEMORY),
        Metric("stats/memory_usage/host_mem", USAGE),
        *(Metric(f"stats/other_info/{name}", COUNTER) for name in OTHER_INFO),
    )
    leaves = [Leaf("info/architecture/arch_type", METRIC_MODE)]
    if driver.has_tensor_counters:
        leaves.append(Leaf("stats/tensor_engine/pe_cntrs", METRIC_MODE))
    return Layout(metrics, tuple(leaves))


@cache
def device_layout(driver: Generation, *, heartbeat: bool) -> Layout:
    """Return the files of `neuron<N>` itself; the heartbeat exists on Trainium2 and later."""
    metrics = tuple(Metric(f"stats/memory_usage/host_mem/{name}", USAGE) for name in HOST_MEMORY)
    fixed = (
        Leaf("uevent", METRIC_MODE),
        Leaf("dev", READ_ONLY),
        *(
            Leaf(f"power/{name}", METRIC_MODE if name == "control" else READ_ONLY)
            for name, _ in _POWER_MANAGEMENT
        ),
        Leaf("connected_devices", driver.public_mode),
        Leaf("core_count", driver.public_mode),
        Leaf("reset", RESET_MODE, Role.RESET),
        Leaf("info/notify_delay", METRIC_MODE, Role.NOTIFY),
        Leaf("info/serial_number", METRIC_MODE),
        *(
            Leaf(f"info/architecture/{name}", METRIC_MODE)
            for name in ("arch_type", "device_name", "instance_type")
        ),
    )
    hardware = (Leaf(f"stats/hardware/{name}", METRIC_MODE, Role.HARDWARE) for name in driver.hardware)
    return Layout(metrics, (*fixed, *hardware, *_condition(driver, heartbeat=heartbeat)))


def power_management() -> tuple[str, ...]:
    """Return the texts of the kernel's own files in `power`: a device that knows no power management."""
    return tuple(text for _, text in _POWER_MANAGEMENT)


def _condition(driver: Generation, *, heartbeat: bool) -> list[Leaf]:
    leaves = [Leaf("stats/power/utilization", METRIC_MODE)]
    if driver.has_health:
        leaves.append(Leaf("stats/power/utilization_raw", METRIC_MODE))
        leaves.append(Leaf("stats/hardware/health_status/unhealthy_components", METRIC_MODE))
        if heartbeat:
            leaves.append(Leaf("stats/hardware/health_status/healthcheck_heartbeat", METRIC_MODE))
    return leaves
