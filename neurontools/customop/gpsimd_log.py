"""What the real runtime logs about GPSIMD: printed text, exceptions, timeouts (customops.md sections 4.10, 4.11, 8)."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from neurontools.customop.settings import execution_timeout_s
from neurontools.runtime.log import Component, Level, RuntimeLog

if TYPE_CHECKING:
    from neurontools.customop.calls import Failure, Outcome

_CONSUME = "pool_stdio_queue_consume_all_entries"
_logger = logging.getLogger("neurontools.customop")
_warned: set[tuple[str, str]] = set()


def log_outcome(op: str, outcome: Outcome, called_with: str = "") -> None:
    """Log what a call printed, how it failed on the device, and once per operator each warning of the checks.

    Args:
        op: qualified name of the operator.
        outcome: how the call ended.
        called_with: its arguments as text, needed only when there are warnings.
    """
    for warning in outcome.warnings:
        if (op, warning) not in _warned:
            _warned.add((op, warning))
            _logger.warning("custom operator %s: %s [called with %s]", op, warning, called_with)
    fatal = outcome.failure if outcome.failure is not None and outcome.failure.fatal else None
    if not outcome.printed and not outcome.complained and fatal is None:
        return
    log = RuntimeLog(os.environ)
    if outcome.printed:
        log.write(
            Level.INFO, Component.TDRV, _CONSUME, _block("Printing stdout from GPSIMD:", outcome.printed)
        )
    if outcome.complained:
        log.write(
            Level.ERROR, Component.TDRV, _CONSUME, _block("Printing stderr from GPSIMD:", outcome.complained)
        )
    if fatal is not None:
        _log_fatal(log, fatal)


def _log_fatal(log: RuntimeLog, failure: Failure) -> None:
    if failure.kind == "timeout":
        limit_ms = round(execution_timeout_s() * 1000)
        message = (
            f"(FATAL-RT-UNDEFINED-STATE) inference timeout ({limit_ms} ms) on Neuron Device 0 NC 0, "
            "waiting for execution completion notification"
        )
        log.write(Level.ERROR, Component.TDRV, "exec_consume_tpb_status_notifications", message)
    else:
        message = f"GPSIMD EXCEPTION OCCURRED: {failure.kind.upper()}: {failure.message}"
        log.write(Level.ERROR, Component.TDRV, "exec_consume_tpb_status_notifications", message)
    log.write(Level.ERROR, Component.NMGR, "dlr_infer", "Inference completed with err: 5")


def _block(header: str, text: str) -> str:
    return f"{header}\n{text.rstrip()}"
