"""neuron-customop new and debug: a project to begin with, and gdb on a kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.commands import console

if TYPE_CHECKING:
    import argparse

STYLES = ("element", "tcm", "multicore")


def add_new_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `new`."""
    parser.add_argument("name", metavar="NAME", help="the operator's name")
    parser.add_argument("directory", nargs="?", metavar="DIR", help="where to (default: NAME)")
    parser.add_argument(
        "--style", choices=STYLES, default="tcm", help="how the kernel reaches its tensors (default: tcm)"
    )


def add_debug_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `debug`, but for those of `run`."""
    parser.add_argument(
        "--ex",
        action="append",
        default=[],
        metavar="COMMAND",
        help="what gdb does once the kernel was reached, such as --ex bt; may be repeated",
    )
    parser.add_argument("--batch", action="store_true", help="end after these commands")


def run_new(arguments: argparse.Namespace) -> int:
    """Write a project."""
    from neurontools.customop.scaffold import Style, create_project

    directory = Path(arguments.directory or arguments.name)
    for path in create_project(arguments.name, directory, Style(arguments.style)):
        console.out(str(path))
    console.notice(f"next: cd {directory} && neuron-customop build && pytest")
    return 0


def run_debug(arguments: argparse.Namespace) -> int:
    """Become gdb."""
    from neurontools.customop.debugging import debugger_for
    from neurontools.customop.package import find_operator, read_package

    package = read_package(arguments.library)
    entry = package.manifest.operators[find_operator(package, arguments.op)]
    words = [entry.qualified]
    for value in arguments.input:
        words += ["--input", value]
    debugger = debugger_for(
        package, entry.kernel, words, arguments.ex, batch=arguments.batch, say=console.notice
    )
    sys.stdout.flush()
    os.execve(debugger.command[0], debugger.command, {**os.environ, **debugger.environ})  # noqa: S606
