"""neuron-customop bench: modelled device time of an operator, its parts, and advice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.progress import ProgressLine
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from neurontools.customop.bench.baseline import Baseline
    from neurontools.customop.bench.bench import BenchSettings
    from neurontools.customop.bench.report import BenchReport
    from neurontools.customop.package import Package


def run_bench(arguments: argparse.Namespace) -> int:
    """Benchmark operators; 1 when one is slower than its baseline."""
    from neurontools.customop.bench import baseline
    from neurontools.customop.bench.bench import bench, bench_same_inputs
    from neurontools.customop.package import find_operator

    settings = _settings(arguments)
    known = None if arguments.baseline is None else baseline.load(Path(arguments.baseline))
    if arguments.save is not None:
        baseline.check_writable(Path(arguments.save))
    place, op = _target(arguments.target)
    package = _package(place)
    entries = package.manifest.operators
    if op is None and len(entries) > 1 and (arguments.input or arguments.compare is not None):
        names = ", ".join(entry.name for entry in entries)
        raise UsageError("--input and --compare need one operator", f"name one of: {names}")
    indexes = range(len(entries)) if op is None else [find_operator(package, op)]
    with ProgressLine() as progress:
        groups = [bench(package, index, settings, progress.show) for index in indexes]
        compared: tuple[BenchReport, ...] = ()
        if arguments.compare is not None:
            other_package, other_op = _compared_operator(arguments.compare, groups[0][0])
            index = find_operator(other_package, other_op)
            compared = bench_same_inputs(other_package, index, settings, groups[0], progress.show)
    return _print_reports(arguments, groups, compared, known)


def _print_reports(
    arguments: argparse.Namespace,
    groups: Sequence[Sequence[BenchReport]],
    compared: Sequence[BenchReport],
    known: Baseline | None,
) -> int:
    from neurontools.customop.bench.baseline import compare, save
    from neurontools.customop.bench.text import comparison_lines

    reports = [report for group in groups for report in group]
    threshold = arguments.threshold / 100
    comparisons = () if known is None else compare(known, reports)
    if arguments.save is not None:
        save(Path(arguments.save), reports)
    if arguments.json:
        console.out(_json(reports, compared, comparisons))
    else:
        console.out("\n".join([*_texts(groups, compared), *comparison_lines(comparisons, threshold)]))
    return 1 if any(found.is_slower(threshold) for found in comparisons) else 0


def _texts(groups: Sequence[Sequence[BenchReport]], compared: Sequence[BenchReport]) -> list[str]:
    from neurontools.customop.bench.text import report_text, side_by_side, sweep_text

    width = shutil.get_terminal_size().columns
    if compared:
        return [side_by_side(first, second) for first, second in zip(groups[0], compared, strict=True)]
    return [report_text(group[0], width) if len(group) == 1 else sweep_text(group, width) for group in groups]


def _json(
    reports: Sequence[BenchReport], compared: Sequence[BenchReport], comparisons: Sequence[object]
) -> str:
    import json
    from dataclasses import asdict

    document: dict[str, object] = {"reports": [asdict(report) for report in reports]}
    if compared:
        document["compared"] = [asdict(report) for report in compared]
    if comparisons:
        document["baseline"] = [asdict(found) for found in comparisons]  # type: ignore[call-overload]
    return json.dumps(document, indent=2)


def _settings(arguments: argparse.Namespace) -> BenchSettings:
    from neurontools.customop.abi import MAX_CORES
    from neurontools.customop.bench.bench import BenchSettings
    from neurontools.customop.bench.inputs import parse_sweep, parse_template

    if arguments.cores is not None and not 1 <= arguments.cores <= MAX_CORES:
        raise UsageError(
            f"invalid --cores {arguments.cores}: must be 1 to {MAX_CORES}", f"--cores {MAX_CORES}"
        )
    if arguments.repeat < 0 or arguments.warm_up < 0 or not arguments.threshold >= 0:
        raise UsageError(
            "--repeat, --warm-up and --threshold must be at least 0", "omit them for the defaults"
        )
    return BenchSettings(
        tuple(map(parse_template, arguments.input)),
        arguments.dtype,
        parse_sweep(arguments.sweep, arguments.shape),
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
    from neurontools.customop.building.project import FILE_NAME, find_project, load_project
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
