"""The report of a parallel compile and the log lines of the real tool (AWS Neuron documentation, PyTorch NeuronX neuron_parallel_compile)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.cache import layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.precompile.worker_pool import CompileResult

MAX_EXIT_CODE = 255


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The results of a parallel compile, with its start (Unix seconds) and duration."""

    results: tuple[CompileResult, ...]
    started_unix_s: float
    seconds: float

    @property
    def failed(self) -> tuple[CompileResult, ...]:
        """The graphs without a NEFF."""
        return tuple(result for result in self.results if result.error)

    @property
    def exit_code(self) -> int:
        """The number of failed graphs, at most 255."""
        return min(len(self.failed), MAX_EXIT_CODE)


def report_json(report: CompileReport) -> dict[str, Any]:
    """Return the report with the real tool's keys; `false` is present only if something failed."""
    failed = len(report.failed)
    summary = {"true": len(report.results) - failed, **({"false": failed} if failed else {})}
    return {
        "compilation_summary": summary,
        "compilation_report": {
            f"{result.entry}/{layouts.GRAPH}": {
                "status": not result.error,
                "retry": result.retries,
                "compile_time": round(result.seconds, 6),
            }
            for result in report.results
        },
        "start_time": report.started_unix_s,
        "compilation_time": round(report.seconds, 6),
    }


def format_report(report: CompileReport) -> str:
    """Return the report as the real tool prints it."""
    import json

    return json.dumps(report_json(report), indent=4)


def format_totals(report: CompileReport) -> tuple[str, ...]:
    """Return the three lines of totals that scripts parse."""
    failed = len(report.failed)
    return (
        f"Total graphs: {len(report.results)}",
        f"Total successful compilations: {len(report.results) - failed}",
        f"Total failed compilations: {failed}",
    )


def format_grab(paths: Sequence[str]) -> str:
    """Return the line that names the graphs to compile."""
    return f"master grab hlos to compile: {[f'{path}/{layouts.GRAPH}' for path in paths]}"


def format_log_line(tag: str, text: str) -> str:
    """Return a line as the real tools log it."""
    import logging

    from neurontools.cache.logs import WrapperFormatter

    record = logging.LogRecord(tag, logging.INFO, "", 0, text, None, None)
    record.tag = tag
    return WrapperFormatter().format(record)


def now() -> float:
    """Return the time, in Unix seconds, to the millisecond."""
    return round(time.time(), 3)
