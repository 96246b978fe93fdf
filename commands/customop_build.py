"""neuron-customop build: from flags or customop.yaml to a library, once or at every change."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neurontools.commands import console
from neurontools.customop.errors import CustomOpBuildError
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from neurontools.customop.building.build import BuildResult
    from neurontools.customop.building.request import BuildRequest

    Paint = Callable[[str, str], str]

COLOURS = ("auto", "always", "never")


def add_arguments(build: argparse.ArgumentParser) -> None:
    """Add the options of `build`."""
    build.add_argument("name", nargs="?", metavar="NAME", help="the library is lib<NAME>.so")
    build.add_argument("--compute", nargs="+", default=[], metavar="FILE", help="C++ sources of the kernels")
    build.add_argument(
        "--shape", nargs="+", default=[], metavar="FILE", help="C++ sources with NEURON_LIBRARY"
    )
    build.add_argument(
        "--project",
        default=".",
        metavar="PATH",
        help="without NAME: a customop.yaml, or the directory that has one (default: here)",
    )
    build.add_argument("-o", "--output", metavar="DIR", help="where to put the library (default: here)")
    build.add_argument("--multicore", action="store_true", help="run every kernel on all 8 GPSIMD cores")
    build.add_argument(
        "--stack-size", type=int, metavar="BYTES", help="declare how much stack the kernels need"
    )
    build.add_argument(
        "--release", action="store_true", help="leave out the bounds checks of element accessors"
    )
    build.add_argument(
        "--sanitize",
        action="store_true",
        help="add the compiler's address and undefined-behaviour sanitizers",
    )
    build.add_argument(
        "--cflag",
        action="append",
        default=[],
        metavar="FLAG",
        help="one more compiler flag, as --cflag=-DN=1",
    )
    build.add_argument(
        "--watch", action="store_true", help="build again whenever a source changes; Ctrl-C ends"
    )
    build.add_argument(
        "--no-compile-commands", action="store_true", help="write no compile_commands.json for editors"
    )
    build.add_argument("--json", action="store_true", help="print JSON")
    build.add_argument("-v", "--verbose", action="store_true", help="say every step")
    build.add_argument(
        "--color",
        choices=COLOURS,
        default="auto",
        help="colours (auto: on a terminal, unless NO_COLOR is set)",
    )


def run_build(arguments: argparse.Namespace) -> int:
    """Build once, or again and again."""
    if arguments.watch:
        _watch(arguments)
    _build_once(arguments)
    return 0


def _build_once(arguments: argparse.Namespace) -> BuildResult:
    from neurontools.customop.building.build import build

    request, home = _request(arguments)
    paint = painter(arguments.color, sys.stderr.isatty())
    try:
        result = build(request, _say if arguments.verbose else console.notice)
    except CustomOpBuildError as error:
        raise type(error)(_painted(error.message, paint), error.remedy) from error
    finally:
        # Editors want it most while a source does not compile.
        if not arguments.no_compile_commands:
            _write_compile_commands(request, home)
    for line in result.warnings:
        _say(_painted(line, paint))
    console.out_now(_json(result) if arguments.json else _text(result, arguments.color))
    return result


def _request(arguments: argparse.Namespace) -> tuple[BuildRequest, Path]:
    """Return what to build, and where compile_commands.json goes."""
    from neurontools.customop.building.request import BuildRequest, with_stack

    if arguments.name is None:
        request, home = _project(arguments)
    else:
        if not arguments.compute or not arguments.shape:
            raise UsageError(
                f"building {arguments.name} needs --compute and --shape",
                "name the sources, or leave the name out to build what customop.yaml says",
            )
        home = Path(arguments.output or ".")
        request = BuildRequest(
            arguments.name, tuple(map(Path, arguments.compute)), tuple(map(Path, arguments.shape)), home
        )
    request = replace(
        request,
        cflags=(*request.cflags, *arguments.cflag),
        multicore=request.multicore or arguments.multicore,
        release=request.release or arguments.release,
        sanitize=request.sanitize or arguments.sanitize,
    )
    if arguments.stack_size is not None:
        request = with_stack(request, arguments.stack_size)
    return request, home


def _project(arguments: argparse.Namespace) -> tuple[BuildRequest, Path]:
    from neurontools.customop.building.project import FILE_NAME, find_project, load_project

    if arguments.compute or arguments.shape:
        raise UsageError("--compute and --shape need a NAME", "neuron-customop build NAME --compute ...")
    path = find_project(Path(arguments.project))
    if path is None:
        raise UsageError(
            f"no NAME given, and no {FILE_NAME} in {os.path.abspath(arguments.project)}",
            "neuron-customop build NAME --compute FILE --shape FILE, or neuron-customop new NAME for a project",
        )
    request = load_project(path).request
    if arguments.output is not None:
        request = replace(request, directory=Path(arguments.output))
    return request, path.parent


def _watch(arguments: argparse.Namespace) -> NoReturn:
    from neurontools.customop.building.freshness import stamps, wait_for_change

    watched: set[str] = set()
    while True:
        # Looked at before the build: what is saved meanwhile is a change.
        watched |= _given(arguments)
        before = stamps(sorted(watched))
        try:
            result = _build_once(arguments)
        except NeuronToolsError as error:
            console.fail(error)
        else:
            built = {entry.path for entry in result.manifest.sources}
            before.update(stamps(sorted(built - watched)))
            watched |= built
        console.notice(f"watching {len(before)} files; Ctrl-C ends")
        changed = wait_for_change(before)
        console.notice(f"changed: {', '.join(os.path.relpath(path) for path in changed)}")


def _given(arguments: argparse.Namespace) -> set[str]:
    from neurontools.customop.building.project import find_project

    given = {*arguments.compute, *arguments.shape}
    if arguments.name is None:
        project = find_project(Path(arguments.project))
        if project is not None:
            given.add(str(project))
            given |= {str(path) for path in project.parent.rglob("*.[ch]*") if path.suffix in _SUFFIXES}
    return {os.path.abspath(path) for path in given}


_SUFFIXES = {".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx"}


def _write_compile_commands(request: BuildRequest, home: Path) -> None:
    from neurontools.customop.building.compile_commands import write_compile_commands

    try:
        write_compile_commands(request, home)
    except (NeuronToolsError, OSError) as error:
        console.notice(f"no compile_commands.json: {error}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _text(result: BuildResult, color: str) -> str:
    paint = painter(color, sys.stdout.isatty())
    state = paint(f"built in {result.seconds:.2f} s", "32") if result.rebuilt else paint("up to date", "32")
    return "\n".join(
        (
            f"{result.path}  {state}",
            *(f"  {entry.library}::{entry.schema}" for entry in result.manifest.operators),
        )
    )


def _json(result: BuildResult) -> str:
    import json

    return json.dumps(
        {
            "path": str(result.path),
            "rebuilt": result.rebuilt,
            "seconds": round(result.seconds, 4),
            "warnings": list(result.warnings),
            "operators": [f"{entry.library}::{entry.schema}" for entry in result.manifest.operators],
        }
    )


def painter(color: str, terminal: bool) -> Paint:
    """Return what colours a text with a code of the terminal, or leaves it: --color, then NO_COLOR and FORCE_COLOR."""
    wanted = color == "always" or (
        color == "auto"
        and not os.environ.get("NO_COLOR")
        and (terminal or bool(os.environ.get("FORCE_COLOR")))
    )
    return _coloured if wanted else plain


def plain(text: str, _code: str) -> str:
    """Return a text as it is."""
    return text


def _coloured(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _painted(text: str, paint: Paint) -> str:
    return "\n".join(_painted_line(line, paint) for line in text.splitlines())


def _painted_line(line: str, paint: Paint) -> str:
    for word, code in ((": error: ", "1;31"), (": fatal error: ", "1;31"), (": warning: ", "1;35")):
        place, found, message = line.partition(word)
        if found and not line.startswith(" "):
            return f"{paint(place, '1')}: {paint(word[2:-1], code)} {message}"
    return paint(line, "32") if line.strip(" |~^\t") == "" and "^" in line else line
