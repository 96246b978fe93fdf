"""What differs between the drivers of two releases (AWS Neuron documentation, sysfs user guide, and driver source).

Release 2.32 comes with driver 2.30.2, whose names are those of the guide; for 2.28 the names of driver source 2.24.7
stand, the nearest that is public. The failures that only that source names are shown in both: our decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from neurontools import env
from neurontools.runtime.status import NrtStatus
from neurontools.runtime.versions import DRIVER_VERSION

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
