"""neurond's process, started by `neurontools.machine.launch`.

It starts its own session, and reports the start by one line of JSON on an inherited pipe: the daemon's facts, or
an error.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import logging.handlers
import os
import sys
from typing import TYPE_CHECKING, Any

from neurontools.base.text import printable, printable_lines
from neurontools.errors import NeuronToolsError
from neurontools.machine import codec
from neurontools.machine.daemon.daemon import Daemon
from neurontools.machine.directory import MachineDirectory
from neurontools.machine.machine_config import DaemonInfo, StartOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOG_BYTES = 1 << 20
_LOG_FILES = 2
_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def serve(options: StartOptions, on_ready: Callable[[DaemonInfo], None]) -> None:
    """Run a machine's daemon in this process until it ends.

    Raises:
        NeuronToolsError: it could not start.
    """

    async def run() -> None:
        await Daemon(options, on_ready).run()

    os.umask(0o077)
    try:
        MachineDirectory(options.machine).make()
        _log_to_file(MachineDirectory(options.machine).log, foreground=options.foreground)
        asyncio.run(run())
    except OSError as error:
        raise NeuronToolsError(
            f"machine {options.machine!r} cannot start: {error}", "see 'neurond logs'"
        ) from error
    finally:
        logging.shutdown()


def main(argv: Sequence[str]) -> int:
    """Run the daemon's process and return its exit code.

    Args:
        argv: the machine's name (shown by ps), the options as JSON, the descriptor for the report.
    """
    _, options_json, ready_fd = argv
    options = codec.decode(options_json, StartOptions)
    if os.fork():
        os._exit(0)
    os.chdir("/")

    report = os.fdopen(int(ready_fd), "wb", buffering=0)

    def report_start(message: dict[str, object]) -> None:
        if report.closed:
            return  # the start was reported already
        try:
            with report:
                report.write(json.dumps(message).encode() + b"\n")
        except OSError:
            logging.getLogger("neurond").warning("the process that started the daemon did not wait")

    def ready(info: DaemonInfo) -> None:
        report_start({"ready": info.to_json()})
        gc.freeze()  # objects made so far live as long as the daemon
        gc.enable()

    gc.disable()
    try:
        serve(options, ready)
    except NeuronToolsError as error:
        report_start({"error": error.message, "remedy": error.remedy, "exit_code": error.exit_code})
        return error.exit_code
    return 0


class _LogFormatter(logging.Formatter):
    """Shows names of clients so that a log in a terminal is harmless: one line each, only tracebacks have several."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the base class names it so
        """Return the line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  the base class names it so
        """Return the traceback."""
        return printable_lines(super().formatException(ei))


def _log_to_file(path: str, *, foreground: bool) -> None:
    handlers: list[logging.Handler] = [
        logging.handlers.RotatingFileHandler(
            path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8", errors="backslashreplace"
        )
    ]
    if foreground:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(_LogFormatter(_LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
