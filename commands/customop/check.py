"""neuron-customop check: find errors in the operators of a library."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.commands import console
from neurontools.commands.customop.build import painter, plain
from neurontools.commands.customop.run import set_time_limit
from neurontools.commands.progress import ProgressCounter
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.commands.customop.build import Paint
    from neurontools.customop.building.request import CheckWords
    from neurontools.customop.checking.report import CheckReport, CheckSettings

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
