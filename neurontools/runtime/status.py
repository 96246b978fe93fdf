"""Facts of the real runtime: its versions, NRT status codes with the error that carries them, and its log lines.

The versions are those of Neuron SDK 2.32 (release notes); neuron-ls shows three numbers, the log line of the runtime
four. The codes are those of nrt_status.h (AWS Neuron documentation).

    2025-Oct-01 23:48:34.002205 516278:516289 ERROR  TDRV:func_name                      message

NEURON_RT_LOG_LEVEL (ERROR by default) and NEURON_RT_LOG_LOCATION (console by default) apply to every component; with
the suffix _NRT, _TDRV or _NMGR to that one. A location that is neither `console` nor `syslog` is a file; when it
can't be written, lines go to the console. The console is stderr.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Self

from neurontools.base.text import printable, printable_lines
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Mapping


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


_LEVEL = "NEURON_RT_LOG_LEVEL"
_LOCATION = "NEURON_RT_LOG_LOCATION"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SOURCE_WIDTH = 36


class Level(IntEnum):
    """How much a component logs."""

    QUIET = 0
    ERROR = 1
    WARN = 2
    INFO = 3
    DEBUG = 4
    TRACE = 5


class Component(StrEnum):
    """Parts of the real runtime that log under a name of their own."""

    NRT = "NRT"
    TDRV = "TDRV"
    NMGR = "NMGR"


class RuntimeLog:
    """Where the lines of one process go, by its environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._levels = {component: _level(environ, component) for component in Component}
        self._locations = {component: _location(environ, component) for component in Component}

    def write(
        self, level: Level, component: Component, function: str, message: str, printed: str = ""
    ) -> None:
        """Write one line, or nothing below the component's level.

        Args:
            level: ERROR to TRACE.
            component: the part that logs it.
            function: name of the real runtime's function that logs it, or of ours.
            message: one line; characters that would control a terminal are escaped.
            printed: lines that a program printed, which follow the message.
        """
        if level > self._levels[component]:
            return
        line = format_line(datetime.now().astimezone(), level, component, function, message)
        if printed:
            line += f"\n{printable_lines(printed)}"
        location = self._locations[component]
        if location == "syslog":
            _to_syslog(level, line)
        elif location == "console" or not _to_file(location, line):
            _to_console(line)


def format_line(when: datetime, level: Level, component: Component, function: str, message: str) -> str:
    """Return a log line without its newline."""
    stamp = f"{when.year}-{_MONTHS[when.month - 1]}-{when:%d %H:%M:%S.%f}"
    source = f"{component}:{function}"
    thread = f"{os.getpid()}:{threading.get_native_id()}"
    return f"{stamp} {thread} {level.name:<6} {source:<{_SOURCE_WIDTH}} {printable(message)}"


def _level(environ: Mapping[str, str], component: Component) -> Level:
    for name in (f"{_LEVEL}_{component}", _LEVEL):
        word = environ.get(name, "").strip().upper()
        word = "WARN" if word == "WARNING" else word
        if word in Level.__members__:
            return Level[word]
    return Level.ERROR


def _location(environ: Mapping[str, str], component: Component) -> str:
    chosen = environ.get(f"{_LOCATION}_{component}") or environ.get(_LOCATION) or "console"
    return chosen.lower() if chosen.lower() in {"console", "syslog"} else chosen


def _to_console(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _to_file(path: str, line: str) -> bool:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        return False
    return True


def _to_syslog(level: Level, line: str) -> None:
    import syslog

    priorities = {Level.ERROR: syslog.LOG_ERR, Level.WARN: syslog.LOG_WARNING, Level.INFO: syslog.LOG_INFO}
    syslog.syslog(priorities.get(level, syslog.LOG_DEBUG), line)
