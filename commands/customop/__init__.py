"""neuron-customop: the parser, and the module of each command."""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from neurontools import env
from neurontools.commands import console
from neurontools.commands.parsing import add_duration, add_json, positive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# command -> (module beside this one, function, help)
COMMANDS = {
    "build": ("build", "run_build", "compile sources to lib<NAME>.so, if anything changed"),
    "inspect": ("show", "run_inspect", "show the contents of a library file without running it"),
    "load": ("show", "run_load", "load a library into a worker and list its operators"),
    "doctor": ("show", "run_doctor", "check what is installed and how to get what is missing"),
    "run": ("check", "run_operator", "run an operator on generated inputs"),
    "check": ("check", "run_check", "test operators on inputs of many shapes"),
    "bench": ("bench", "run_bench", "estimate an operator's time on the device and where it is spent"),
    "debug": ("check", "run_debug", "run an operator under gdb, stopped at the start of its kernel"),
}

_OLD = frozenset({"doctor"})  # `neurontools doctor` checks all; lists omit it

EXAMPLES = {
    "build": (
        "build relu --compute relu.cpp --shape shape.cpp",
        "build relu --compute relu.cpp --shape shape.cpp -o out --multicore",
        "build --watch  the project of customop.yaml, at every change",
        "build --sanitize -o sanitized",
    ),
    "inspect": ("inspect librelu.so", "inspect librelu.so --json"),
    "load": ("load librelu.so",),
    "doctor": ("doctor",),
    "run": (
        "run librelu.so relu::forward --input 32x4096:float32 --repeat 10",
        "run libscale.so scale --input 8x8:float32:42 --input 0.5 --json",
    ),
    "check": (
        "check librelu.so forward --reference 'torch.relu(x0)'",
        "check  the project of ./customop.yaml",
    ),
    "bench": (
        "bench librelu.so forward --shape 32x4096",
        "bench  all operators of the project in this directory, built first",
        "bench libscale.so scale --input 1Kx1K:float32 --input 0.5",
        "bench librelu_element.so forward --shape 32x4096 --compare librelu_tcm.so",
    ),
    "debug": (
        "debug librelu.so forward --input 4x4:float32",
        "debug librelu.so forward --input 4x4:float32 --batch --ex bt --ex 'info locals'",
    ),
}

_EXIT_CODES = "exit codes: 0 success, 1 failed, 2 usage error, 130 interrupted"
_VERB_EXIT_CODES = {
    "doctor": "exit codes: 0 success, 1 a required component is missing, 2 usage error, 130 interrupted",
    "check": "exit codes: 0 success, 1 failed or errors found, 2 usage error, 130 interrupted",
    "debug": "exit codes: that of gdb; 1 failed, 2 usage error",
}
_TIMEOUT_HELP = "time limit of a call (default: NEURON_RT_EXEC_TIMEOUT or 10s)"
_BENCH_NOTE = (
    "Modelled times come from the cost model that the compiler and neuron-profile use. They do not include the arithmetic"
    " of the kernel's own loops. Measured times are those of this computer and say nothing about the device.\n\n"
    "exit codes: 0 success, 1 failed, 2 usage error, 130 interrupted"
)


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-customop",
        description="Build, run, check and benchmark custom C++ operators for the GPSIMD engine.",
        epilog=f"{_examples([lines[0] for name, lines in EXAMPLES.items() if name not in _OLD])}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, _, summary) in COMMANDS.items():
        listed: dict[str, Any] = {} if name in _OLD else {"help": summary}
        command = commands.add_parser(
            name,
            **listed,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"{_examples(EXAMPLES[name])}\n\n{_VERB_EXIT_CODES.get(name, '')}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _ADD_ARGUMENTS[name](command)
    return parser


def _examples(lines: Sequence[str]) -> str:
    return "\n".join(("examples:", *(f"  neuron-customop {line}" for line in lines)))


def _add_build(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="the library is lib<NAME>.so")
    add("--compute", nargs="+", default=[], metavar="FILE", help="C++ sources of the kernels")
    add("--shape", nargs="+", default=[], metavar="FILE", help="C++ sources with NEURON_LIBRARY")
    add(
        "--project",
        default=".",
        metavar="PATH",
        help="without NAME: a customop.yaml, or its directory (default: the current directory)",
    )
    add("-o", "--output", metavar="DIR", help="directory for the library (default: the current directory)")
    add("--multicore", action="store_true", help="run every kernel on all 8 GPSIMD cores")
    add("--stack-size", type=int, metavar="BYTES", help="declare the stack size that the kernels need")
    add("--release", action="store_true", help="omit the bounds checks of element accessors")
    add(
        "--sanitize",
        action="store_true",
        help="add the compiler's address and undefined-behaviour sanitizers",
    )
    add(
        "--cflag", action="append", default=[], metavar="FLAG", help="add a compiler flag, e.g. --cflag=-DN=1"
    )
    add("--watch", action="store_true", help="rebuild when a source changes, until Ctrl-C")
    add("--no-compile-commands", action="store_true", help="do not write compile_commands.json for editors")
    add_json(parser)
    add("-v", "--verbose", action="store_true", help="print every step")
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        metavar="WHEN",
        help="use colours: auto (on a terminal, unless NO_COLOR is set), always or never",
    )


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("library", metavar="LIB", help="path of a lib<NAME>.so")
    add_json(parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    _add_inspect(parser)
    _add_any_instance(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_call(parser)
    parser.add_argument(
        "--repeat", type=positive, default=1, metavar="N", help="number of calls (default: 1)"
    )
    add_duration(parser, "--timeout", _TIMEOUT_HELP)
    add_json(parser, "print JSON; times in nanoseconds")


def _add_check(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("library", nargs="?", metavar="LIB", help="the library (default: that of ./customop.yaml)")
    add("op", nargs="?", metavar="OP", help="one operator (default: all of them)")
    _add_input(
        parser,
        "NxM:float32 (equal letters, equal sizes), N:int32%%M (from 0 to M - 1), "
        "*:float32 (any shape), or a number (default: found by trial)",
    )
    add(
        "--reference",
        default="",
        metavar="EXPR",
        help="the expected output: an expression, e.g. 'torch.relu(x0)', or MODULE:FUNCTION or FILE.py:FUNCTION of the inputs",
    )
    add(
        "--backward",
        action="append",
        metavar="[I=]EXPR",
        help="the gradient of input I, e.g. 'backward(g, x0)'; y is the output (default: a pair found by name)",
    )
    add("--cases", type=int, default=12, metavar="N", help="number of random shapes per rank (default: 12)")
    add("--seed", type=int, default=0, metavar="N", help="seed of sizes and contents (default: 0)")
    add(
        "--tolerance",
        type=float,
        metavar="T",
        help="allowed difference to the reference (default: torch's by dtype)",
    )
    add_duration(parser, "--timeout", _TIMEOUT_HELP)
    add_json(parser)
    _add_any_instance(parser)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"{_examples(EXAMPLES['bench'])}\n\n{_BENCH_NOTE}"
    add = parser.add_argument
    add(
        "target",
        nargs="*",
        metavar="LIB|PROJECT|OP",
        help="a library, a customop.yaml or its directory (default: the current directory), "
        "and one operator (default: all)",
    )
    _add_input(parser, "32x4096:float32[:SEED], 4Kx1K:float32, *:float32 with --shape, or a number")
    add("--shape", metavar="SHAPE", help="shape of tensors without --input (default: found by trial)")
    add("--dtype", default="float32", help="dtype of tensors without --input (default: float32)")
    add("--cores", type=int, metavar="N", help="run a multicore library on N cores (default: 8)")
    add("--repeat", type=int, default=50, metavar="N", help="number of timed calls, 0 for none (default: 50)")
    add("--warm-up", type=int, default=3, metavar="N", help="number of warm-up calls (default: 3)")
    add("--compare", metavar="LIB[:OP]", help="run another library on the same inputs, side by side")
    add_json(parser, "print JSON; times in nanoseconds")


def _add_debug(parser: argparse.ArgumentParser) -> None:
    _add_call(parser)
    parser.add_argument(
        "--ex",
        action="append",
        default=[],
        metavar="COMMAND",
        help="gdb command to run at the start of the kernel, e.g. --ex bt; may be repeated",
    )
    parser.add_argument("--batch", action="store_true", help="exit after these commands")


def _add_any_instance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--any-instance",
        action="store_true",
        help="allow machines without NeuronCore-v2, the only core that runs custom operators",
    )


def _add_call(parser: argparse.ArgumentParser) -> None:
    _add_any_instance(parser)
    parser.add_argument("library", metavar="LIB", help="path of a lib<NAME>.so")
    parser.add_argument("op", metavar="OP", help="LIBRARY::OPERATOR, or OPERATOR if it is unique")
    _add_input(
        parser,
        "32x4096:float32, 32x4096:float32:SEED, 64:int32%%10 (from 0 to 9), scalar:float32, or a number",
    )


def _add_input(parser: argparse.ArgumentParser, forms: str) -> None:
    description = f"the next argument: {forms}"
    parser.add_argument("--input", action="append", default=[], metavar="VALUE", help=description)


_ADD_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "build": _add_build,
    "inspect": _add_inspect,
    "load": _add_load,
    "doctor": add_json,
    "run": _add_run,
    "check": _add_check,
    "bench": _add_bench,
    "debug": _add_debug,
}


def _run(arguments: argparse.Namespace) -> int:
    if getattr(arguments, "any_instance", False):
        os.environ[env.CUSTOMOP_ANY_INSTANCE] = "1"
    module, function, _ = COMMANDS[arguments.command]
    action = getattr(import_module(f"neurontools.commands.customop.{module}"), function)
    return int(action(arguments))


main = console.command(build_parser, _run)
