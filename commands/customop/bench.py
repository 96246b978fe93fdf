"""neuron-customop bench: modelled device time of an operator, its parts, and advice."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.console import ProgressLine
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from neurontools.customop.bench.bench import BenchSettings
    from neurontools.customop.bench.report import BenchReport
    from neurontools.customop.package import Package


def run_bench(arguments: argparse.Namespace) -> int:
    """Benchmark operators."""
    from neurontools.customop.bench.bench import bench, parse_template
    from neurontools.customop.package import find_operator

    settings = _settings(arguments)
    place, op = _target(arguments.target)
    package = _package(place)
    entries = package.manifest.operators
    if op is None and len(entries) > 1 and (arguments.input or arguments.compare is not None):
        names = ", ".join(entry.name for entry in entries)
        raise UsageError("--input and --compare need one operator", f"name one of: {names}")
    indexes = range(len(entries)) if op is None else [find_operator(package, op)]
    compared = None
    with ProgressLine() as progress:
        reports = [bench(package, index, settings, progress.show) for index in indexes]
        if arguments.compare is not None:
            other, other_op = _compared_operator(arguments.compare, reports[0])
            same_inputs = replace(settings, templates=tuple(map(parse_template, reports[0].inputs)))
            compared = bench(other, find_operator(other, other_op), same_inputs, progress.show)
    console.out((_json if arguments.json else _text)(reports, compared))
    return 0


def _text(reports: Sequence[BenchReport], compared: BenchReport | None) -> str:
    from neurontools.customop.bench.report import report_text, side_by_side

    if compared is not None:
        return side_by_side(reports[0], compared)
    width = shutil.get_terminal_size().columns
    return "\n".join(report_text(report, width) for report in reports)


def _json(reports: Sequence[BenchReport], compared: BenchReport | None) -> str:
    import json
    from dataclasses import asdict

    document = {"reports": [asdict(report) for report in reports]}
    if compared is not None:
        document["compared"] = [asdict(compared)]
    return json.dumps(document, indent=2)


def _settings(arguments: argparse.Namespace) -> BenchSettings:
    from neurontools.customop.abi import MAX_CORES
    from neurontools.customop.bench.bench import BenchSettings, parse_shape, parse_template

    if arguments.cores is not None and not 1 <= arguments.cores <= MAX_CORES:
        raise UsageError(
            f"invalid --cores {arguments.cores}: must be 1 to {MAX_CORES}", f"--cores {MAX_CORES}"
        )
    if arguments.repeat < 0 or arguments.warm_up < 0:
        raise UsageError("--repeat and --warm-up must be at least 0", "omit them for the defaults")
    return BenchSettings(
        tuple(map(parse_template, arguments.input)),
        arguments.dtype,
        parse_shape(arguments.shape) if arguments.shape else None,
        arguments.cores,
        arguments.repeat,
        arguments.warm_up,
    )


def _target(words: Sequence[str]) -> tuple[str, str | None]:
    """Return the library or project, and the operator if one is named."""
    match list(words):
        case []:
            return ".", None
        case [word] if os.path.exists(word) or word.endswith((".so", ".yaml")) or os.sep in word:
            return word, None
        case [word]:
            return ".", word
        case [place, op]:
            return place, op
    raise UsageError("too many arguments: expected a library and an operator", "neuron-customop bench LIB OP")


def _package(place: str) -> Package:
    """Return a library; that of a project is built first."""
    from neurontools.customop.building.build import build
    from neurontools.customop.building.request import FILE_NAME, find_project, load_project
    from neurontools.customop.package import read_package

    if not os.path.isdir(place) and not place.endswith(".yaml"):
        return read_package(place)
    project = find_project(Path(place))
    if project is None:
        raise UsageError(
            f"no {FILE_NAME} in {os.path.abspath(place)}",
            "neuron-customop bench LIB OP, or --help for examples",
        )
    return read_package(build(load_project(project).request, console.notice).path)


def _compared_operator(text: str, report: BenchReport) -> tuple[Package, str]:
    place, found, op = text.rpartition(":")
    if not found or os.path.exists(text):
        place, op = text, report.op.rpartition("::")[2]
    return _package(place), op
