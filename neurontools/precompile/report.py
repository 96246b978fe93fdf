"""What is said of a parallel compile: the report and the lines of the real tool (compile-runtime.md sections 1.5, 1.6)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.cache import layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.precompile.farm import Job
    from neurontools.precompile.work import Groups

TAG = "NEURON_PARALLEL_COMPILE"
MOST_FAILURES = 255


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a parallel compile did, and when it began (Unix seconds) and how long it took."""

    jobs: tuple[Job, ...]
    started_unix_s: float
    seconds: float

    @property
    def failed(self) -> tuple[Job, ...]:
        """The graphs without a NEFF."""
        return tuple(job for job in self.jobs if job.error)

    @property
    def exit_code(self) -> int:
        """The number of failed graphs, as an exit code can hold it: more than 255 are 255."""
        return min(len(self.failed), MOST_FAILURES)


def report_json(outcome: Outcome) -> dict[str, Any]:
    """Return the report, keys and all, as the real tool prints it: `false` is there only where something failed."""
    failed = len(outcome.failed)
    summary = {"true": len(outcome.jobs) - failed, **({"false": failed} if failed else {})}
    return {
        "compilation_summary": summary,
        "compilation_report": {
            f"{job.entry}/{layouts.GRAPH}": {
                "status": not job.error,
                "retry": job.retries,
                "compile_time": round(job.seconds, 6),
            }
            for job in outcome.jobs
        },
        "start_time": outcome.started_unix_s,
        "compilation_time": round(outcome.seconds, 6),
    }


def report_text(outcome: Outcome) -> str:
    """Return the report as the real tool prints it."""
    import json

    return json.dumps(report_json(outcome), indent=4)


def total_lines(outcome: Outcome) -> tuple[str, ...]:
    """Return the three lines that scripts look for."""
    failed = len(outcome.failed)
    return (
        f"Total graphs: {len(outcome.jobs)}",
        f"Total successful compilations: {len(outcome.jobs) - failed}",
        f"Total failed compilations: {failed}",
    )


def grab_line(paths: Sequence[str]) -> str:
    """Return the line that names what is going to be compiled."""
    return f"master grab hlos to compile: {[f'{path}/{layouts.GRAPH}' for path in paths]}"


def remaining_line(groups: Groups) -> str:
    """Return the line that counts the entries by state."""
    return (
        f"Current remaining items are {len(groups.todo)}, locked are {len(groups.locked)}, "
        f"failed are {len(groups.failed)}, done are {len(groups.done)}, total is {groups.total}"
    )


def log_line(tag: str, text: str) -> str:
    """Return a line as the real tools log it."""
    import logging

    from neurontools.cache.logs import WrapperFormatter

    record = logging.LogRecord(tag, logging.INFO, "", 0, text, None, None)
    record.tag = tag
    return WrapperFormatter().format(record)


def now() -> float:
    """Return the time, in Unix seconds, to the millisecond."""
    return round(time.time(), 3)
