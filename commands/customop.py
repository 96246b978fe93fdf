"""neuron-customop: build custom C++ operators, look into built libraries, try their operators."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.customop_build import add_arguments as add_build_arguments
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.package import Package
    from neurontools.customop.runner import RunReport

EXAMPLES = """examples:
  neuron-customop build relu --compute relu.cpp --shape shape.cpp
  neuron-customop build relu --compute relu.cpp --shape shape.cpp -o build --multicore
  neuron-customop build --watch          (as customop.yaml says, at every change)
  neuron-customop load librelu.so
  neuron-customop run librelu.so my_ops::relu --input 32x4096:float32 --repeat 10
  neuron-customop run librelu.so scale --input 8x8:float32:42 --input 0.5 --json
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-customop",
        description="Build and try custom C++ operators for the GPSIMD engine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    build = commands.add_parser("build", help="compile sources into lib<NAME>.so, if anything changed")
    add_build_arguments(build)
    load = commands.add_parser("load", help="show the operators of a library and how it was built")
    load.add_argument("library", metavar="LIB")
    load.add_argument("--json", action="store_true", help="print JSON")
    run = commands.add_parser("run", help="run an operator with made-up inputs")
    run.add_argument("library", metavar="LIB")
    run.add_argument("op", metavar="OP", help="LIBRARY::OPERATOR, or OPERATOR when that is enough")
    run.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="VALUE",
        help="the next argument: 32x4096:float32, 32x4096:float32:SEED, scalar:float32, or a number",
    )
    run.add_argument("--repeat", type=int, default=1, metavar="N", help="how often to run it (default: 1)")
    run.add_argument("--json", action="store_true", help="print JSON; times in nanoseconds")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    actions = {"build": _build, "load": _load, "run": _try}
    actions[arguments.command](arguments)
    return 0


def _build(arguments: argparse.Namespace) -> None:
    from neurontools.commands.customop_build import run_build

    run_build(arguments)


def _load(arguments: argparse.Namespace) -> None:
    from neurontools.customop.package import read_package

    package = read_package(arguments.library)
    if arguments.json:
        console.out(_package_json(package))
        return
    manifest = package.manifest
    mode = "all 8 GPSIMD cores" if manifest.multicore else "one GPSIMD core"
    checks = "release: element bounds unchecked" if manifest.release else "element bounds checked"
    console.out(f"{package.path}  {mode}, {checks}")
    for entry in manifest.operators:
        console.out(f"  {entry.library}::{entry.schema}  kernel {entry.kernel}, {entry.access} access")
    rows = (
        ("compiler", manifest.compiler),
        ("machine", manifest.machine),
        ("flags", " ".join(manifest.cflags) or "none"),
        ("stack", f"{manifest.stack_bytes} bytes" if manifest.stack_bytes else "not declared"),
        ("digest", package.sha256),
        *(("source", entry.path) for entry in manifest.sources),
    )
    for label, value in rows:
        console.out(f"  {label:<9} {value}")


def _try(arguments: argparse.Namespace) -> None:
    from neurontools.customop.runner import parse_input, run

    if arguments.repeat < 1:
        raise UsageError(f"--repeat {arguments.repeat} is not a number above 0", "--repeat 1")
    inputs = [parse_input(text) for text in arguments.input]
    report = run(arguments.library, arguments.op, inputs, arguments.repeat, _Progress(arguments.repeat))
    console.out(_report_json(report) if arguments.json else _report_text(report))


class _Progress:
    """Says once a second how far a long run is."""

    def __init__(self, total: int) -> None:
        import time

        self._clock = time.monotonic
        self._total = total
        self._next_s = self._clock() + 1.0

    def __call__(self, done: int) -> None:
        if done < self._total and self._clock() >= self._next_s:
            console.notice(f"{done} of {self._total} runs")
            self._next_s = self._clock() + 1.0


def _package_json(package: Package) -> str:
    import json

    manifest = json.loads(package.manifest.to_bytes())
    for entry, plain in zip(package.manifest.operators, manifest["operators"], strict=True):
        plain["schema"] = f"{entry.library}::{entry.schema}"
    return json.dumps({"path": package.path, "sha256": package.sha256, "manifest": manifest}, indent=2)


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
    output = report.output
    sizes = "x".join(map(str, output.sizes)) or "scalar"
    nans = f", {output.nan_count} NaN" if output.nan_count else ""
    lines = [
        report.schema,
        (
            f"  output    {sizes}:{output.dtype}  min {output.minimum:.6g}  max {output.maximum:.6g}"
            f"  mean {output.mean:.6g}{nans}"
        ),
        (
            f"  measured  {_duration(report.measured_best_ns)} best, {_duration(report.measured_median_ns)} median"
            f" of {report.repeat} on this computer"
        ),
        f"  modelled  {_duration(report.modelled_ns)} on a NeuronCore-v2",
        f"  checks    passed: {', '.join(report.checks)}",
    ]
    if report.repeat > 1:
        lines.append(
            f"  repeats   {'gave the same bytes' if report.repeatable else 'DIFFER from each other'}"
        )
    lines += [f"  warning   {warning}" for warning in report.warnings]
    return "\n".join(lines)


def _duration(nanoseconds: int) -> str:
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3f} {unit}"
    return f"{nanoseconds} ns"
