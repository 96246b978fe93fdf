"""Log lines in the shape of the real runtime (AWS Neuron documentation, runtime configuration).

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
from typing import TYPE_CHECKING

from neurontools.base.text import printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

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
