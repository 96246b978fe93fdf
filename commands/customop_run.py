"""neuron-customop run: an operator with made-up inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.progress import ProgressLine
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.customop.runner import RunReport


def run_operator(arguments: argparse.Namespace) -> int:
    """Run an operator and print what came out."""
    from neurontools.customop.runner import parse_input, run

    if arguments.repeat < 1:
        raise UsageError(f"--repeat {arguments.repeat} is not a number above 0", "--repeat 1")
    inputs = [parse_input(text) for text in arguments.input]
    with ProgressLine() as line:

        def show(done: int) -> None:
            line.count("", done, arguments.repeat, "runs")

        report = run(arguments.library, arguments.op, inputs, arguments.repeat, show)
    console.out(_report_json(report) if arguments.json else _report_text(report))
    return 0


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
    return "\n".join(lines)
