"""neuron-customop bench: modelled device time of an operator, where it goes, and what to do about it."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.progress import ProgressLine
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.bench.baseline import Baseline
    from neurontools.customop.bench.bench import BenchSettings
    from neurontools.customop.bench.report import BenchReport
    from neurontools.customop.package import Package

EXAMPLES = """examples:
  neuron-customop bench                                 (the project here: built first, all operators)
  neuron-customop bench librelu.so forward --shape 32x4096
  neuron-customop bench librelu.so scale --input 1Kx1K:float32 --input 0.5
  neuron-customop bench librelu.so forward --sweep 1x4K,32x4K,1Kx4K --dtype bfloat16
  neuron-customop bench libproduct.so product --input NxK:float32 --input KxN:float32 --sweep N=64,256 --sweep K=64
  neuron-customop bench librelu_element.so forward --shape 32x4096 --compare librelu_tcm.so
  neuron-customop bench --save baseline.json            (once)
  neuron-customop bench --baseline baseline.json        (in CI: exit code 1 when one is slower by more than 5 %)

Modelled times are of the cost model that neuron-profile and the compiler use ('neurontools help cost-model'). Measured times are
those of this computer and say nothing about the device.
"""


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument(
        "target",
        nargs="*",
        metavar="LIB|PROJECT|OP",
        help="a library, a customop.yaml or the directory of one (default: here), and one operator (default: all)",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="VALUE",
        help="the next argument: "
        "32x4096:float32[:SEED], NxM:float32 with --sweep, *:float32 with --shape, or a number",
    )
    parser.add_argument("--shape", metavar="SHAPE", help="of tensors that may have any (default: tried out)")
    parser.add_argument("--dtype", default="float32", help="of tensors without --input (default: float32)")
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="SIZES",
        help="several shapes, as 1x4K,32x4K, or sizes of a letter, as N=256,1K; of several all combinations",
    )
    parser.add_argument(
        "--cores", type=int, metavar="N", help="run a multicore library on N cores (default: 8)"
    )
    parser.add_argument(
        "--calls", type=int, default=50, metavar="N", help="calls to time, 0: none (default: 50)"
    )
    parser.add_argument("--warm-up", type=int, default=3, metavar="N", help="calls before them (default: 3)")
    parser.add_argument(
        "--compare", metavar="LIB[:OP]", help="the same inputs with another library, side by side"
    )
    parser.add_argument("--save", metavar="FILE", help="write the modelled times to a baseline")
    parser.add_argument(
        "--baseline", metavar="FILE", help="compare modelled times; exit code 1 when one is slower"
    )
    parser.add_argument(
        "--threshold", type=float, default=5.0, metavar="PERCENT", help="by how much (default: 5 %%)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON; times in nanoseconds")


def run_bench(arguments: argparse.Namespace) -> int:
    """Bench operators; 1 when one is slower than its baseline."""
    from neurontools.customop.bench import baseline
    from neurontools.customop.bench.bench import bench, bench_same_inputs
    from neurontools.customop.package import find_operator

    settings = _settings(arguments)
    known = baseline.load(Path(arguments.baseline)) if arguments.baseline is not None else None
    if arguments.save is not None:
        baseline.check_writable(Path(arguments.save))
    place, op = _target(arguments.target)
    package = _package(place)
    entries = package.manifest.operators
    if op is None and len(entries) > 1 and (arguments.input or arguments.compare is not None):
        names = ", ".join(entry.name for entry in entries)
        raise UsageError("--input and --compare are about one operator", f"name it: {names}")
    indexes = range(len(entries)) if op is None else [find_operator(package, op)]
    others: tuple[BenchReport, ...] = ()
    with ProgressLine() as line:
        groups = [bench(package, index, settings, line.show) for index in indexes]
        if arguments.compare is not None:
            other, other_op = _other(arguments.compare, groups[0][0])
            others = bench_same_inputs(other, find_operator(other, other_op), settings, groups[0], line.show)
    return _tell(arguments, groups, others, known)


def _tell(
    arguments: argparse.Namespace,
    groups: Sequence[Sequence[BenchReport]],
    others: Sequence[BenchReport],
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
        console.out(_json(reports, others, comparisons))
    else:
        console.out("\n".join([*_texts(groups, others), *comparison_lines(comparisons, threshold)]))
    return 1 if any(found.is_slower(threshold) for found in comparisons) else 0


def _texts(groups: Sequence[Sequence[BenchReport]], others: Sequence[BenchReport]) -> list[str]:
    from neurontools.customop.bench.text import report_text, side_by_side, sweep_text

    width = shutil.get_terminal_size().columns
    if others:
        return [side_by_side(first, second) for first, second in zip(groups[0], others, strict=True)]
    return [report_text(group[0], width) if len(group) == 1 else sweep_text(group, width) for group in groups]


def _json(
    reports: Sequence[BenchReport], others: Sequence[BenchReport], comparisons: Sequence[object]
) -> str:
    import json
    from dataclasses import asdict

    document: dict[str, object] = {"reports": [asdict(report) for report in reports]}
    if others:
        document["compared"] = [asdict(report) for report in others]
    if comparisons:
        document["baseline"] = [asdict(found) for found in comparisons]  # type: ignore[call-overload]
    return json.dumps(document, indent=2)


def _settings(arguments: argparse.Namespace) -> BenchSettings:
    from neurontools.customop.abi import MAX_CORES
    from neurontools.customop.bench.bench import BenchSettings
    from neurontools.customop.bench.inputs import parse_sweep, parse_template

    if arguments.cores is not None and not 1 <= arguments.cores <= MAX_CORES:
        raise UsageError(
            f"--cores {arguments.cores} is not between 1 and {MAX_CORES}", f"--cores {MAX_CORES}"
        )
    if arguments.calls < 0 or arguments.warm_up < 0 or not arguments.threshold >= 0:
        raise UsageError("--calls, --warm-up and --threshold must not be below 0", "leave them out")
    return BenchSettings(
        tuple(map(parse_template, arguments.input)),
        arguments.dtype,
        parse_sweep(arguments.sweep, arguments.shape),
        arguments.cores,
        arguments.calls,
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
    raise UsageError("more than a library and an operator", "neuron-customop bench LIB OP")


def _package(place: str) -> Package:
    """Return a library, that of a project built first."""
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


def _other(text: str, report: BenchReport) -> tuple[Package, str]:
    place, found, op = text.rpartition(":")
    if not found or os.path.exists(text):
        place, op = text, report.op.rpartition("::")[2]
    return _package(place), op
