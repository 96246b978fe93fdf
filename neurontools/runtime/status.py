"""Facts of the real runtime: its versions, and NRT status codes with the error that carries them.

The versions are those of Neuron SDK 2.32 (release notes); neuron-ls shows three numbers, the log line of the runtime
four. The codes are those of nrt_status.h (AWS Neuron documentation).
"""

from __future__ import annotations

from enum import IntEnum

from neurontools.errors import NeuronToolsError

RUNTIME_VERSION = "2.34.10"
RUNTIME_BUILD = f"{RUNTIME_VERSION}.0"
DRIVER_VERSION = "2.30.2.0"
COLLECTIVES_VERSION = RUNTIME_BUILD


class NrtStatus(IntEnum):
    """NRT_STATUS with its real names and numbers; 8 and 12 are unused."""

    NRT_SUCCESS = 0
    NRT_FAILURE = 1
    NRT_INVALID = 2
    NRT_INVALID_HANDLE = 3
    NRT_RESOURCE = 4
    NRT_TIMEOUT = 5
    NRT_HW_ERROR = 6
    NRT_QUEUE_FULL = 7
    NRT_LOAD_NOT_ENOUGH_NC = 9
    NRT_UNSUPPORTED_NEFF_VERSION = 10
    NRT_FAIL_HOST_MEM_ALLOC = 11
    NRT_UNINITIALIZED = 13
    NRT_CLOSED = 14
    NRT_QUEUE_EMPTY = 15
    NRT_EXEC_UNIT_UNRECOVERABLE = 101
    NRT_EXEC_BAD_INPUT = 1002
    NRT_EXEC_COMPLETED_WITH_NUM_ERR = 1003
    NRT_EXEC_COMPLETED_WITH_ERR = 1004
    NRT_EXEC_NC_BUSY = 1005
    NRT_EXEC_OOB = 1006
    NRT_COLL_PENDING = 1100
    NRT_EXEC_HW_ERR_COLLECTIVES = 1200
    NRT_EXEC_HW_ERR_HBM_UE = 1201
    NRT_EXEC_HW_ERR_NC_UE = 1202
    NRT_EXEC_HW_ERR_DMA_ABORT = 1203
    NRT_EXEC_SW_NQ_OVERFLOW = 1204
    NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205
    NRT_NETWORK_PROXY_FAILURE = 1206

    @property
    def text(self) -> str:
        """The message of a status; those of 1, 4 and 1004 are the real ones, the others are our decision."""
        return _TEXTS[self]


_TEXTS = {
    NrtStatus.NRT_SUCCESS: "Success",
    NrtStatus.NRT_FAILURE: "Non specific failure",
    NrtStatus.NRT_INVALID: "Invalid argument",
    NrtStatus.NRT_INVALID_HANDLE: "Invalid handle",
    NrtStatus.NRT_RESOURCE: "Allocation Failure",
    NrtStatus.NRT_TIMEOUT: "Operation timed out",
    NrtStatus.NRT_HW_ERROR: "Hardware failure",
    NrtStatus.NRT_QUEUE_FULL: "Execution queue is full",
    NrtStatus.NRT_LOAD_NOT_ENOUGH_NC: "Not enough NeuronCores to load the model",
    NrtStatus.NRT_UNSUPPORTED_NEFF_VERSION: "Unsupported NEFF version",
    NrtStatus.NRT_FAIL_HOST_MEM_ALLOC: "Host memory allocation failure",
    NrtStatus.NRT_UNINITIALIZED: "Runtime is not initialized",
    NrtStatus.NRT_CLOSED: "Runtime is closed",
    NrtStatus.NRT_QUEUE_EMPTY: "Execution queue is empty",
    NrtStatus.NRT_EXEC_UNIT_UNRECOVERABLE: "Execution unit is unrecoverable",
    NrtStatus.NRT_EXEC_BAD_INPUT: "Execution was given bad input",
    NrtStatus.NRT_EXEC_COMPLETED_WITH_NUM_ERR: "Execution was completed with numerical errors",
    NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR: "Execution was completed with other errors",
    NrtStatus.NRT_EXEC_NC_BUSY: "NeuronCore is busy",
    NrtStatus.NRT_EXEC_OOB: "Out-of-bound access during execution",
    NrtStatus.NRT_COLL_PENDING: "Collective operation is pending",
    NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES: "Hardware error in a collective operation",
    NrtStatus.NRT_EXEC_HW_ERR_HBM_UE: "Uncorrectable HBM error",
    NrtStatus.NRT_EXEC_HW_ERR_NC_UE: "Uncorrectable NeuronCore error",
    NrtStatus.NRT_EXEC_HW_ERR_DMA_ABORT: "DMA engine aborted",
    NrtStatus.NRT_EXEC_SW_NQ_OVERFLOW: "Notification queue overflow",
    NrtStatus.NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE: "Uncorrectable HBM error that can be repaired",
    NrtStatus.NRT_NETWORK_PROXY_FAILURE: "Network proxy failure",
}


class NrtError(NeuronToolsError, RuntimeError):
    """A failed runtime call.

    Its text has the frameworks' form: `nrt_load status=4 message="Allocation Failure"`. Frameworks raise it as a
    RuntimeError, which is what scripts catch.

    Args:
        function: name of the runtime call, e.g. `nrt_load`.
        status: why it failed.
        remedy: what to do about it, with the facts of this failure.
        detail: what exactly failed, where the status's own text does not say it; becomes the message then.
    """

    def __init__(self, function: str, status: NrtStatus, remedy: str = "", *, detail: str = "") -> None:
        super().__init__(f'{function} status={int(status)} message="{detail or status.text}"', remedy)
        self.function = function
        self.status = status
        self.detail = detail or status.text
