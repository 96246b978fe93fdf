"""Facts of the real runtime: its versions, and NRT status codes with the error that carries them.

The versions are those of Neuron SDK 2.32 (release notes); neuron-ls shows three numbers, the log line of the runtime
four. The codes are those of nrt_status.h (AWS Neuron documentation).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from neurontools.errors import NeuronToolsError

RUNTIME_VERSION = "2.34.10"
RUNTIME_BUILD = f"{RUNTIME_VERSION}.0"
DRIVER_VERSION = "2.30.2.0"
COLLECTIVES_VERSION = RUNTIME_BUILD


class NrtStatus(IntEnum):
    """NRT_STATUS with its real names and numbers, and its messages; 8 and 12 are unused.

    The messages of 1, 4 and 1004 are the real ones, the others are our decision.
    """

    text: str

    def __new__(cls, number: int, text: str = "") -> Self:
        """Return a status by its number; members also have their message."""
        status = int.__new__(cls, number)
        status._value_ = number
        status.text = text
        return status

    NRT_SUCCESS = 0, "Success"
    NRT_FAILURE = 1, "Non specific failure"
    NRT_INVALID = 2, "Invalid argument"
    NRT_INVALID_HANDLE = 3, "Invalid handle"
    NRT_RESOURCE = 4, "Allocation Failure"
    NRT_TIMEOUT = 5, "Operation timed out"
    NRT_HW_ERROR = 6, "Hardware failure"
    NRT_QUEUE_FULL = 7, "Execution queue is full"
    NRT_LOAD_NOT_ENOUGH_NC = 9, "Not enough NeuronCores to load the model"
    NRT_UNSUPPORTED_NEFF_VERSION = 10, "Unsupported NEFF version"
    NRT_FAIL_HOST_MEM_ALLOC = 11, "Host memory allocation failure"
    NRT_UNINITIALIZED = 13, "Runtime is not initialized"
    NRT_CLOSED = 14, "Runtime is closed"
    NRT_QUEUE_EMPTY = 15, "Execution queue is empty"
    NRT_EXEC_UNIT_UNRECOVERABLE = 101, "Execution unit is unrecoverable"
    NRT_EXEC_BAD_INPUT = 1002, "Execution was given bad input"
    NRT_EXEC_COMPLETED_WITH_NUM_ERR = 1003, "Execution was completed with numerical errors"
    NRT_EXEC_COMPLETED_WITH_ERR = 1004, "Execution was completed with other errors"
    NRT_EXEC_NC_BUSY = 1005, "NeuronCore is busy"
    NRT_EXEC_OOB = 1006, "Out-of-bound access during execution"
    NRT_COLL_PENDING = 1100, "Collective operation is pending"
    NRT_EXEC_HW_ERR_COLLECTIVES = 1200, "Hardware error in a collective operation"
    NRT_EXEC_HW_ERR_HBM_UE = 1201, "Uncorrectable HBM error"
    NRT_EXEC_HW_ERR_NC_UE = 1202, "Uncorrectable NeuronCore error"
    NRT_EXEC_HW_ERR_DMA_ABORT = 1203, "DMA engine aborted"
    NRT_EXEC_SW_NQ_OVERFLOW = 1204, "Notification queue overflow"
    NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205, "Uncorrectable HBM error that can be repaired"
    NRT_NETWORK_PROXY_FAILURE = 1206, "Network proxy failure"


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
