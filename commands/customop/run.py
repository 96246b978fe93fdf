"""neuron-customop run and debug: an operator on generated inputs, plain or under gdb."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.base.text import printable
from neurontools.commands import console
from neurontools.commands.progress import ProgressLine
from neurontools.errors import UsageError

_TIMEOUT_S = 10.0
_LONGEST_S = 1e6

if TYPE_CHECKING:
    import argparse

    from neurontools.customop.runner import RunReport


def run_operator(arguments: argparse.Namespace) -> int:
    """Run an operator and print a summary of its output."""
    from neurontools.customop.runner import parse_input, run

    inputs = [parse_input(text) for text in arguments.input]
    set_time_limit(arguments.timeout)
    console.notice(f"running {arguments.op}")
    with ProgressLine() as progress:
        report = run(
            arguments.library,
            arguments.op,
            inputs,
            arguments.repeat,
            lambda done: progress.count("running", done, arguments.repeat, "times"),
        )
    console.out(_report_json(report) if arguments.json else _report_text(report))
    return 0


def set_time_limit(seconds: float | None) -> None:
    """Limit each call of an operator: to the given time, else to that of the environment, else to 10 seconds.

    Raises:
        UsageError: the time is not above 0, or longer than 11 days.
    """
    from neurontools.customop.environment import EXEC_TIMEOUT

    if seconds is None:
        os.environ.setdefault(EXEC_TIMEOUT, str(_TIMEOUT_S))
    elif 0 < seconds < _LONGEST_S:
        os.environ[EXEC_TIMEOUT] = str(seconds)
    else:
        raise UsageError(f"--timeout of {seconds:g} seconds is out of range", "use e.g. 500ms, 30s or 5m")


def run_debug(arguments: argparse.Namespace) -> int:
    """Replace this process by gdb."""
    from neurontools.customop.debugging import debugger_for
    from neurontools.customop.package import find_operator, read_package

    package = read_package(arguments.library)
    entry = package.manifest.operators[find_operator(package, arguments.op)]
    words = [entry.qualified]
    for value in arguments.input:
        words += ["--input", value]
    command = debugger_for(
        package, entry.kernel, words, arguments.ex, batch=arguments.batch, on_progress=console.notice
    )
    sys.stdout.flush()
    os.execve(command[0], command, {**os.environ, env.CUSTOMOP_INPROCESS: "1"})  # noqa: S606


def _report_json(report: RunReport) -> str:
    import json
    import math
    from dataclasses import asdict

    plain = asdict(report)
    output = plain["output"]
    for name, value in output.items():
        if isinstance(value, float) and not math.isfinite(value):
            output[name] = None
    return json.dumps(plain, indent=2)


def _report_text(report: RunReport) -> str:
    from neurontools.base.units import format_ns

    output = report.output
    sizes = "x".join(map(str, output.sizes)) or "scalar"
    nans = f", {output.nan_count} NaN" if output.nan_count else ""
    values = (
        "no elements"
        if 0 in output.sizes
        else f"min {output.minimum:.6g}  max {output.maximum:.6g}  mean {output.mean:.6g}{nans}"
    )
    lines = [
        report.schema,
        f"  output    {sizes}:{output.dtype}  {values}",
        (
            f"  measured  {format_ns(report.measured_best_ns)} best, {format_ns(report.measured_median_ns)} median"
            f" of {report.repeat} on this computer"
        ),
        f"  modelled  {format_ns(report.modelled_ns)} on a NeuronCore-v2, without the arithmetic of the kernel's own loops",
        f"  checks    passed: {', '.join(report.checks)}",
    ]
    if report.repeat > 1:
        lines.append(
            f"  repeats   {'gave the same bytes' if report.repeatable else 'DIFFER from each other'}"
        )
    lines += [f"  warning   {warning}" for warning in report.warnings]
    return "\n".join(map(printable, lines))
