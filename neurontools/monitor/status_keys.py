"""NRT status to neuron-monitor's keys: the one table of which execution counts as what.

Keys, names and numbers are those of the AWS Neuron documentation; which status counts
under which key is our decision where the two do not have the same name. docs/reference/neuron-monitor.md prints this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.monitor.report import ErrorSummary, ExecutionSummary
from neurontools.runtime.status import NrtStatus

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExecutionOutcome(StrEnum):
    """Keys of `execution_summary`."""

    COMPLETED = "completed"
    WITH_ERROR = "completed_with_err"
    WITH_NUMERICAL_ERROR = "completed_with_num_err"
    TIMED_OUT = "timed_out"
    INCORRECT_INPUT = "incorrect_input"
    FAILED_TO_QUEUE = "failed_to_queue"


class ErrorKind(StrEnum):
    """Keys of `error_summary`."""

    GENERIC = "generic"
    NUMERICAL = "numerical"
    TRANSIENT = "transient"
    MODEL = "model"
    RUNTIME = "runtime"
    HARDWARE = "hardware"


@dataclass(frozen=True, slots=True)
class MonitorKeys:
    """What an execution that ended with some status counts as; `error` is None for a success."""

    outcome: ExecutionOutcome
    error: ErrorKind | None


KEYS: dict[NrtStatus, MonitorKeys] = {
    NrtStatus.NRT_SUCCESS: MonitorKeys(ExecutionOutcome.COMPLETED, None),
    NrtStatus.NRT_FAILURE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.GENERIC),
    NrtStatus.NRT_INVALID: MonitorKeys(ExecutionOutcome.INCORRECT_INPUT, ErrorKind.GENERIC),
    NrtStatus.NRT_INVALID_HANDLE: MonitorKeys(ExecutionOutcome.INCORRECT_INPUT, ErrorKind.GENERIC),
    NrtStatus.NRT_RESOURCE: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_TIMEOUT: MonitorKeys(ExecutionOutcome.TIMED_OUT, ErrorKind.RUNTIME),
    NrtStatus.NRT_HW_ERROR: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_QUEUE_FULL: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.TRANSIENT),
    NrtStatus.NRT_LOAD_NOT_ENOUGH_NC: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_UNSUPPORTED_NEFF_VERSION: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.MODEL),
    NrtStatus.NRT_FAIL_HOST_MEM_ALLOC: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_UNINITIALIZED: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_CLOSED: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.RUNTIME),
    NrtStatus.NRT_QUEUE_EMPTY: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.TRANSIENT),
    NrtStatus.NRT_EXEC_UNIT_UNRECOVERABLE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_BAD_INPUT: MonitorKeys(ExecutionOutcome.INCORRECT_INPUT, ErrorKind.MODEL),
    NrtStatus.NRT_EXEC_COMPLETED_WITH_NUM_ERR: MonitorKeys(
        ExecutionOutcome.WITH_NUMERICAL_ERROR, ErrorKind.NUMERICAL
    ),
    NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.GENERIC),
    NrtStatus.NRT_EXEC_NC_BUSY: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.TRANSIENT),
    NrtStatus.NRT_EXEC_OOB: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.MODEL),
    NrtStatus.NRT_COLL_PENDING: MonitorKeys(ExecutionOutcome.FAILED_TO_QUEUE, ErrorKind.TRANSIENT),
    NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_HW_ERR_HBM_UE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_HW_ERR_NC_UE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_HW_ERR_DMA_ABORT: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_EXEC_SW_NQ_OVERFLOW: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.RUNTIME),
    NrtStatus.NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.HARDWARE),
    NrtStatus.NRT_NETWORK_PROXY_FAILURE: MonitorKeys(ExecutionOutcome.WITH_ERROR, ErrorKind.RUNTIME),
}

_BY_NUMBER = {int(status): keys for status, keys in KEYS.items()}
_UNKNOWN = KEYS[NrtStatus.NRT_FAILURE]


def summaries(counts: Iterable[tuple[int, int]]) -> tuple[ErrorSummary, ExecutionSummary]:
    """Return both summaries of executions counted by NRT status number; an unknown number counts as NRT_FAILURE."""
    errors: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    for status, count in counts:
        keys = _BY_NUMBER.get(status, _UNKNOWN)
        outcomes[keys.outcome] = outcomes.get(keys.outcome, 0) + count
        if keys.error is not None:
            errors[keys.error] = errors.get(keys.error, 0) + count
    return ErrorSummary(**errors), ExecutionSummary(**outcomes)
