"""Files of the driver's tree: their names by driver release, their modes, and the format of their texts.

Release 2.32 comes with driver 2.30.2, whose names are those of the sysfs user guide; for 2.28 the names of driver
source 2.24.7 stand, the nearest that is public (AWS Neuron documentation, and driver source). The failures that only
that source names are shown in both: our decision.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.runtime.status import DRIVER_VERSION, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

SUCCESS = "success"
OTHER = "generic_error"

_COMMON_STATUSES = (
    "exec_bad_input",
    "hw_error",
    "resource_nc_error",
    "unsupported_neff_version",
    "failure",
    "invalid_error",
    "oob_error",
    SUCCESS,
    OTHER,
    "resource_error",
    "timeout",
    "hw_collectives_error",
    "hw_hbm_ue_error",
    "hw_nc_ue_error",
    "hw_dma_abort_error",
    "execute_sw_nq_overflow",
    "execute_sw_semaphore_error",
    "execute_sw_event_error",
    "execute_sw_psum_collision",
    "execute_sw_sequencer_fatal",
    "hw_repairable_hbm_ue_error",
)
_EXECUTION_STATUSES = ("failed_to_queue", "completed_with_error", "completed_with_num_error")
_HARDWARE = ("mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected", "sram_ecc_uncorrected")
_HARDWARE_CORRECTED = ("mem_ecc_corrected", "sram_ecc_corrected")
_OLD_RELEASE = "2.28"
_OLD_DRIVER = "2.24.7.0"

_STATUS_OF = {
    NrtStatus.NRT_FAILURE: "failure",
    NrtStatus.NRT_INVALID: "invalid_error",
    NrtStatus.NRT_INVALID_HANDLE: "invalid_error",
    NrtStatus.NRT_RESOURCE: "resource_error",
    NrtStatus.NRT_TIMEOUT: "timeout",
    NrtStatus.NRT_HW_ERROR: "hw_error",
    NrtStatus.NRT_LOAD_NOT_ENOUGH_NC: "resource_nc_error",
    NrtStatus.NRT_UNSUPPORTED_NEFF_VERSION: "unsupported_neff_version",
    NrtStatus.NRT_FAIL_HOST_MEM_ALLOC: "resource_error",
    NrtStatus.NRT_EXEC_UNIT_UNRECOVERABLE: "hw_error",
    NrtStatus.NRT_EXEC_BAD_INPUT: "exec_bad_input",
    NrtStatus.NRT_EXEC_OOB: "oob_error",
    NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES: "hw_collectives_error",
    NrtStatus.NRT_EXEC_HW_ERR_HBM_UE: "hw_hbm_ue_error",
    NrtStatus.NRT_EXEC_HW_ERR_NC_UE: "hw_nc_ue_error",
    NrtStatus.NRT_EXEC_HW_ERR_DMA_ABORT: "hw_dma_abort_error",
    NrtStatus.NRT_EXEC_SW_NQ_OVERFLOW: "execute_sw_nq_overflow",
    NrtStatus.NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE: "hw_repairable_hbm_ue_error",
}
_EXECUTION_STATUS_OF = {
    NrtStatus.NRT_QUEUE_FULL: "failed_to_queue",
    NrtStatus.NRT_EXEC_NC_BUSY: "failed_to_queue",
    NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR: "completed_with_error",
    NrtStatus.NRT_EXEC_COMPLETED_WITH_NUM_ERR: "completed_with_num_error",
}

MAJOR = 246
"""Of the character devices: the kernel gives any free number, this one is our decision."""

NOTIFY_OFF = "-1\n"
READY = "1\n"

_CHARACTER_DEVICES = (
    (1, "mem"),
    (5, "/dev/tty"),
    (10, "misc"),
    (13, "input"),
    (136, "pts"),
    (MAJOR, "neuron"),
)
_TENSOR_HEADER = "xrow_grp,mm_active,wl_active,idle"
_ROW_GROUPS = 4

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

PEAK = "peak"
COUNTER = ("total", "present")
USAGE = (*COUNTER, PEAK)


@dataclass(frozen=True, slots=True)
class DriverRelease:
    """The names and modes of one driver.

    `statuses` are the directories below `stats/status`, `status_of` pairs of NRT status number and directory (others
    count as `generic_error`), `hardware` the error counters of a device. `public_mode` is that of `core_count` and
    `connected_devices`. `has_health` covers `health_status` and `utilization_raw`.
    """

    driver_version: str
    statuses: tuple[str, ...]
    status_of: tuple[tuple[int, str], ...]
    hardware: tuple[str, ...]
    public_mode: int
    has_health: bool
    has_tensor_counters: bool


@cache
def driver_release(release: str) -> DriverRelease:
    """Return the driver of a release of the tools, as NEURONTOOLS_EMULATE names it."""
    old = release == _OLD_RELEASE
    prefix = "execute_" if old else "infer_"
    named = {**_STATUS_OF, **{status: prefix + name for status, name in _EXECUTION_STATUS_OF.items()}}
    return DriverRelease(
        driver_version=_OLD_DRIVER if old else DRIVER_VERSION,
        statuses=tuple(sorted((*_COMMON_STATUSES, *(prefix + name for name in _EXECUTION_STATUSES)))),
        status_of=tuple(sorted((int(status), name) for status, name in named.items())),
        hardware=_HARDWARE if old else (*_HARDWARE, *_HARDWARE_CORRECTED),
        public_mode=0o400 if old else 0o444,
        has_health=not old,
        has_tensor_counters=not old,
    )


def emulated() -> DriverRelease:
    """Return the driver that NEURONTOOLS_EMULATE asks for."""
    return driver_release(env.emulate())


@dataclass(frozen=True, slots=True)
class NumberFiles:
    """A number in a directory of its own, and the names of the files there that show it."""

    directory: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file with its own text."""

    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """The files below a directory, relative to it: those of numbers, then others."""

    metrics: tuple[NumberFiles, ...]
    leaves: tuple[TextFile, ...]


@cache
def core_layout(driver: DriverRelease) -> TreeLayout:
    """Return the files of `neuron_core<i>`."""
    memory = "stats/memory_usage/device_mem"
    metrics = (
        *(NumberFiles(f"stats/status/{name}", COUNTER) for name in driver.statuses),
        NumberFiles(memory, USAGE),
        *(NumberFiles(f"{memory}/{name}", USAGE) for name in CORE_MEMORY),
        NumberFiles("stats/memory_usage/host_mem", USAGE),
        *(NumberFiles(f"stats/other_info/{name}", COUNTER) for name in OTHER_INFO),
    )
    leaves = [TextFile("info/architecture/arch_type", METRIC_MODE)]
    if driver.has_tensor_counters:
        leaves.append(TextFile("stats/tensor_engine/pe_cntrs", METRIC_MODE))
    return TreeLayout(metrics, tuple(leaves))


@cache
def device_layout(driver: DriverRelease, *, heartbeat: bool) -> TreeLayout:
    """Return the files of `neuron<N>` itself; the heartbeat exists on Trainium2 and later."""
    metrics = tuple(NumberFiles(f"stats/memory_usage/host_mem/{name}", USAGE) for name in HOST_MEMORY)
    fixed = (
        TextFile("uevent", METRIC_MODE),
        TextFile("dev", READ_ONLY),
        *(
            TextFile(f"power/{name}", METRIC_MODE if name == "control" else READ_ONLY)
            for name, _ in _POWER_MANAGEMENT
        ),
        TextFile("connected_devices", driver.public_mode),
        TextFile("core_count", driver.public_mode),
        TextFile("reset", RESET_MODE),
        TextFile("info/notify_delay", METRIC_MODE),
        TextFile("info/serial_number", METRIC_MODE),
        *(
            TextFile(f"info/architecture/{name}", METRIC_MODE)
            for name in ("arch_type", "device_name", "instance_type")
        ),
    )
    hardware = (TextFile(f"stats/hardware/{name}", METRIC_MODE) for name in driver.hardware)
    return TreeLayout(metrics, (*fixed, *hardware, *_condition(driver, heartbeat=heartbeat)))


def power_management() -> tuple[str, ...]:
    """Return the texts of the kernel's own files in `power`: a device that knows no power management."""
    return tuple(text for _, text in _POWER_MANAGEMENT)


def _condition(driver: DriverRelease, *, heartbeat: bool) -> list[TextFile]:
    leaves = [TextFile("stats/power/utilization", METRIC_MODE)]
    if driver.has_health:
        leaves.append(TextFile("stats/power/utilization_raw", METRIC_MODE))
        leaves.append(TextFile("stats/hardware/health_status/unhealthy_components", METRIC_MODE))
        if heartbeat:
            leaves.append(TextFile("stats/hardware/health_status/healthcheck_heartbeat", METRIC_MODE))
    return leaves


def format_number(value: int) -> str:
    """Return the text of a counter."""
    return f"{value}\n"


def format_neighbours(connected_to: Sequence[int] | None) -> str:
    """Return the text of `connected_devices`, an empty line for none."""
    return ", ".join(map(str, connected_to or ())) + "\n"


def format_serial_number(instance_id: str, device: int) -> str:
    """Return the text of `info/serial_number`; the number is made up from the instance's id."""
    digest = hashlib.sha256(f"serial\0{instance_id}\0{device}".encode()).digest()
    return f"{int.from_bytes(digest[:8], 'big'):016x}\n"


def format_uevent(device: int) -> str:
    """Return the text of `uevent`."""
    return f"MAJOR={MAJOR}\nMINOR={device}\nDEVNAME=neuron{device}\n"


def format_device_number(device: int) -> str:
    """Return the text of `dev`: major and minor number."""
    return f"{MAJOR}:{device}\n"


def format_power(status: str, unix_s: int, low: float, high: float, mean: float) -> str:
    """Return the text of `stats/power/utilization`: status, time, and percent over the last minute."""
    return f"{status},{unix_s},{low:.2f},{high:.2f},{mean:.2f}\n"


def format_tensor_counters(active: int, idle: int) -> str:
    """Return the text of `pe_cntrs`: cycles of each row group of the tensor engine, alike for all of them."""
    rows = [f"{group},{active},0,{idle}" for group in range(_ROW_GROUPS)]
    return "\n".join([_TENSOR_HEADER, *rows]) + "\n"


def format_character_devices() -> str:
    """Return the text that stands in for `/proc/devices`."""
    rows = "".join(f"{major:3} {name}\n" for major, name in _CHARACTER_DEVICES)
    return f"Character devices:\n{rows}\nBlock devices:\n"
