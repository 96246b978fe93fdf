"""neuron-customop: begin, build, inspect, try and debug custom C++ operators."""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.commands import console
from neurontools.commands.customop_bench import add_bench_arguments
from neurontools.commands.customop_build import add_arguments as add_build_arguments
from neurontools.commands.customop_check import add_check_arguments
from neurontools.commands.customop_project import add_debug_arguments, add_new_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

# command -> lines of its --help; the first of each are in that of neuron-customop; `bench` has its own
EXAMPLES = {
    "build": (
        "build relu --compute relu.cpp --shape shape.cpp",
        "build relu --compute relu.cpp --shape shape.cpp -o out --multicore",
        "build --watch          (as customop.yaml says, at every change)",
        "build --sanitize -o sanitized",
    ),
    "new": (
        "new relu && cd relu && neuron-customop build && pytest",
        "new relu there --style multicore",
    ),
    "inspect": ("inspect librelu.so", "inspect librelu.so --json"),
    "load": ("load librelu.so",),
    "run": (
        "run librelu.so relu::forward --input 32x4096:float32 --repeat 10",
        "run libscale.so scale --input 8x8:float32:42 --input 0.5 --json",
    ),
    "check": (
        "check librelu.so forward --reference 'torch.relu(x0)'",
        "check                  (the project here, as its customop.yaml says)",
    ),
    "debug": (
        "debug librelu.so forward --input 4x4:float32",
        "debug librelu.so forward --input 4x4:float32 --batch --ex bt --ex 'info locals'",
    ),
    "doctor": ("doctor",),
}

# command -> where it is: what one does, the others need not load
ACTIONS = {
    "build": ("customop_build", "run_build"),
    "new": ("customop_project", "run_new"),
    "inspect": ("customop_show", "run_inspect"),
    "load": ("customop_show", "run_load"),
    "doctor": ("customop_show", "run_doctor"),
    "run": ("customop_run", "run_operator"),
    "check": ("customop_check", "run_check"),
    "bench": ("customop_bench", "run_bench"),
    "debug": ("customop_project", "run_debug"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-customop",
        description="Build and try custom C++ operators for the GPSIMD engine.",
        epilog=_epilog(
            [lines[0] for lines in EXAMPLES.values()] + ["bench librelu.so forward --shape 32x4096"]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    build = commands.add_parser("build", help="compile sources into lib<NAME>.so, if anything changed")
    add_build_arguments(build)
    add_new_arguments(commands.add_parser("new", help="write a project that builds and passes its tests"))
    inspect = commands.add_parser("inspect", help="show what a library file says of itself; runs none of it")
    load = commands.add_parser("load", help="load a library into a worker and list its operators")
    for parser_of_library in (inspect, load):
        parser_of_library.add_argument("library", metavar="LIB")
        parser_of_library.add_argument("--json", action="store_true", help="print JSON")
    _add_any_instance(load)
    doctor = commands.add_parser("doctor", help="what is installed, what is missing and how to get it")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    run = commands.add_parser("run", help="run an operator with made-up inputs")
    _add_call_arguments(run)
    run.add_argument("--repeat", type=int, default=1, metavar="N", help="how often to run it (default: 1)")
    run.add_argument("--json", action="store_true", help="print JSON; times in nanoseconds")
    check = commands.add_parser("check", help="find what is wrong with operators, over many shapes")
    add_check_arguments(check)
    _add_any_instance(check)
    add_bench_arguments(
        commands.add_parser("bench", help="model an operator's time on the device, and say what costs it")
    )
    debug = commands.add_parser("debug", help="run an operator under gdb, stopped where its kernel begins")
    _add_call_arguments(debug)
    add_debug_arguments(debug)
    for name, lines in EXAMPLES.items():
        commands.choices[name].epilog = _epilog(lines)
        commands.choices[name].formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def _epilog(lines: Sequence[str]) -> str:
    return "\n".join(("examples:", *(f"  neuron-customop {line}" for line in lines)))


def _add_any_instance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--any-instance",
        action="store_true",
        help="go on when the machine has no NeuronCore-v2, the only one that has custom operators",
    )


def _add_call_arguments(parser: argparse.ArgumentParser) -> None:
    _add_any_instance(parser)
    parser.add_argument("library", metavar="LIB")
    parser.add_argument("op", metavar="OP", help="LIBRARY::OPERATOR, or OPERATOR when that is enough")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="VALUE",
        help="the next argument: 32x4096:float32, 32x4096:float32:SEED, 64:int32%%10 (from 0 to 9), scalar:float32, "
        "or a number",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    if getattr(arguments, "any_instance", False):
        os.environ[env.CUSTOMOP_ANY_INSTANCE] = "1"
    module, name = ACTIONS[arguments.command]
    action = getattr(import_module(f"neurontools.commands.{module}"), name)
    return int(action(arguments))
