"""neuron-customop check, run and debug: find errors of operators, or run one on generated inputs, plain or under gdb."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.base.text import printable
from neurontools.commands import console
from neurontools.commands.console import ProgressCounter, ProgressLine
from neurontools.commands.customop.build import painter, plain
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.commands.customop.build import Paint
    from neurontools.customop.building.request import CheckWords
    from neurontools.customop.checking.report import CheckReport, CheckSettings
    from neurontools.customop.runner import RunReport


_TIMEOUT_S = 10.0
_LONGEST_S = 1e6


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
    """Set the time limit of operator calls: the argument, the environment variable, or 10 seconds, in this order.

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


_WIDTH = 11
_COLOURS = {"ok": "32", "FAILED": "1;31", "warning": "1;35"}


def run_check(arguments: argparse.Namespace) -> int:
    """Check operators; 1 when errors are found."""
    from neurontools.customop.checking.check import check
    from neurontools.customop.package import find_operator, read_package

    library, words = _library(arguments)
    package = read_package(library)
    entries = package.manifest.operators
    if (
        arguments.op is None
        and len(entries) > 1
        and (arguments.input or arguments.reference or arguments.backward)
    ):
        names = ", ".join(entry.name for entry in entries)
        raise UsageError("--input, --reference and --backward need one operator", f"name one of: {names}")
    if arguments.cases < 0:
        raise UsageError(f"--cases {arguments.cases} is below 0", "omit it for the default")
    indexes = range(len(entries)) if arguments.op is None else [find_operator(package, arguments.op)]
    settings = {index: _settings(arguments, words.get(entries[index].name)) for index in indexes}
    set_time_limit(arguments.timeout)
    _quiet()
    reports = []
    for index in indexes:
        console.notice(f"checking {entries[index].qualified}")
        with ProgressCounter("made", "calls") as progress:
            reports.append(check(package, index, settings[index], progress))
    paint = painter("auto", sys.stdout.isatty())
    console.out(
        _json(reports) if arguments.json else "\n".join(_text(report, library, paint) for report in reports),
        styled=paint is not plain,
    )
    return 1 if any(report.findings for report in reports) else 0


def _quiet() -> None:
    # The report contains the failures and warnings that the runtime would log.
    import logging

    os.environ["NEURON_RT_LOG_LEVEL"] = "QUIET"
    logging.getLogger("neurontools.customop").setLevel(logging.ERROR)


def _library(arguments: argparse.Namespace) -> tuple[str, dict[str, CheckWords]]:
    """Return the path of the library and the check options of its project."""
    from neurontools.customop.building.request import FILE_NAME, find_project, load_project

    given: str | None = arguments.library
    if given is None:
        place = find_project(Path())
        if place is None:
            raise UsageError(
                f"no LIB given, and no {FILE_NAME} in the current directory", "neuron-customop check LIB"
            )
        project = load_project(place)
        return os.path.relpath(project.library), project.checks
    for place in (find_project(Path(given).parent), find_project(Path())):
        if place is not None:
            project = load_project(place)
            if os.path.abspath(given) == str(project.library):
                return given, project.checks
    return given, {}


def _settings(arguments: argparse.Namespace, words: CheckWords | None) -> CheckSettings:
    from neurontools.customop.checking.inputs import parse_pattern
    from neurontools.customop.checking.report import CheckSettings

    backward = words.backward if arguments.backward is None and words else arguments.backward
    return CheckSettings(
        tuple(map(parse_pattern, arguments.input or (words.inputs if words else ()))),
        arguments.reference or (words.reference if words else ""),
        None if backward is None else tuple(map(_gradient, backward)),
        arguments.cases,
        arguments.seed,
        words.tolerance if arguments.tolerance is None and words else arguments.tolerance,
    )


def _gradient(text: str) -> tuple[int, str]:
    position, found, expression = text.partition("=")
    return (int(position), expression) if found and position.strip().isdigit() else (0, text)


def _text(report: CheckReport, library: str, paint: Paint) -> str:
    lines = [printable(report.schema)]
    ranks = _ranges(report.ranks)
    facts = {
        "shapes": f"{report.cases} inputs{ranks}: {', '.join(report.dtypes)}",
        "repeats": "the same bytes twice",
        "memory": "independent of uninitialized memory, and of memory outside of tensors and TCM blocks",
        "cores": "the same bytes in four orders of the cores",
        "reference": "agrees",
        "gradient": "agrees with finite differences",
    }
    lines += [_row("assumed", name, words) for name, words in report.assumed]
    lines += [_row("ok", name, facts[name], paint) for name in report.passed]
    for finding in report.findings:
        lines.append(_row("FAILED", finding.check, f"{_inputs(finding.count)}: {finding.message}", paint))
        if finding.remedy:
            lines.append(printable(f"{'':<{_WIDTH * 2}}{finding.remedy}"))
        words = " ".join(f"--input {shlex.quote(word)}" for word in finding.inputs)
        name = report.op.rpartition("::")[2]
        command = f"neuron-customop run {shlex.quote(library)} {name} {words}"
        lines.append(f"{'':<{_WIDTH * 2}}{printable(command)}")
    lines += [_row("warning", "", warning, paint) for warning in report.warnings]
    lines += [_row("refused", "", f"{_inputs(count)}: {reason}") for reason, count in report.refused]
    lines += [_row("skipped", name, reason) for name, reason in report.skipped]
    return "\n".join(lines)


def _ranges(ranks: tuple[int, ...]) -> str:
    """Return the numbers of dimensions as ` of 1 to 3, 5 dimensions`."""
    if ranks == (0,):
        return ""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = (str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f" of {', '.join(texts)} dimensions"


def _inputs(count: int) -> str:
    return "1 input" if count == 1 else f"{count} inputs"


def _row(state: str, name: str, text: str, paint: Paint = plain) -> str:
    padding = " " * max(1, _WIDTH - 2 - len(state))
    return f"  {paint(state, _COLOURS.get(state, ''))}{padding}{printable(f'{name:<{_WIDTH}}{text}')}"


def _json(reports: list[CheckReport]) -> str:
    import json
    from dataclasses import asdict

    return json.dumps([asdict(report) for report in reports], indent=2)
