"""neuron-customop build: build a library once or at every change."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neurontools.base.text import printable, printable_lines
from neurontools.commands import console
from neurontools.customop.errors import CustomOpBuildError
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from neurontools.customop.building.build import BuildResult
    from neurontools.customop.building.request import BuildRequest

    Paint = Callable[[str, str], str]

_SUFFIXES = {".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx"}


def run_build(arguments: argparse.Namespace) -> int:
    """Build once, or at every change."""
    if arguments.watch:
        _watch(arguments)
    _build_once(arguments)
    return 0


def _build_once(arguments: argparse.Namespace) -> BuildResult:
    from neurontools.customop.building.build import build

    request, directory = _request(arguments)
    paint = painter(arguments.color, sys.stderr.isatty())
    try:
        result = build(request, console.err if arguments.verbose else console.notice)
    except CustomOpBuildError as error:
        raise type(error)(_colorize(error.message, paint), error.remedy) from error
    finally:
        # Editors need it most while a source does not compile, but not for sources that do not exist.
        if not arguments.no_compile_commands and all(
            source.is_file() for source in (*request.compute, *request.shape)
        ):
            _write_compile_commands(request, directory)
    for line in result.warnings:
        console.err(_colorize(line, paint), styled=paint is not plain)
    if arguments.json:
        console.out_now(_json(result))
    else:
        paint = painter(arguments.color, sys.stdout.isatty())
        console.out_now(_text(result, paint), styled=paint is not plain)
    return result


def _request(arguments: argparse.Namespace) -> tuple[BuildRequest, Path]:
    """Return the request and the directory for compile_commands.json."""
    from neurontools.customop.building.request import BuildRequest, with_stack

    if arguments.name is None:
        request, directory = _project(arguments)
    else:
        if not arguments.compute or not arguments.shape:
            raise UsageError(
                f"building {arguments.name} needs --compute and --shape",
                "give the sources, or omit NAME to build the project of customop.yaml",
            )
        directory = Path(arguments.output or ".")
        request = BuildRequest(
            arguments.name, tuple(map(Path, arguments.compute)), tuple(map(Path, arguments.shape)), directory
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
    return request, directory


def _project(arguments: argparse.Namespace) -> tuple[BuildRequest, Path]:
    from neurontools.customop.building.request import FILE_NAME, find_project, load_project

    if arguments.compute or arguments.shape:
        raise UsageError("--compute and --shape need a NAME", "neuron-customop build NAME --compute ...")
    path = find_project(Path(arguments.project))
    if path is None:
        raise UsageError(
            f"no NAME given, and no {FILE_NAME} in {os.path.abspath(arguments.project)}",
            "neuron-customop build NAME --compute FILE --shape FILE, or neurontools new customop NAME for a project",
        )
    request = load_project(path).request
    if arguments.output is not None:
        request = replace(request, directory=Path(arguments.output))
    return request, path.parent


def _watch(arguments: argparse.Namespace) -> NoReturn:
    from neurontools.customop.building.freshness import stamps, wait_for_change

    watched: set[str] = set()
    while True:
        # Stamped before the build: a file that is saved during the build counts as changed.
        watched |= _watched_paths(arguments)
        before = stamps(sorted(watched))
        try:
            result = _build_once(arguments)
        except NeuronToolsError as error:
            console.fail(error)
        else:
            built = {entry.path for entry in result.manifest.sources}
            before.update(stamps(sorted(built - watched)))
            watched |= built
        console.notice(f"watching {len(before)} files; press Ctrl-C to stop")
        changed = wait_for_change(before)
        console.notice(f"changed: {', '.join(os.path.relpath(path) for path in changed)}")


def _watched_paths(arguments: argparse.Namespace) -> set[str]:
    from neurontools.customop.building.request import find_project

    paths = {*arguments.compute, *arguments.shape}
    if arguments.name is None:
        project = find_project(Path(arguments.project))
        if project is not None:
            paths.add(str(project))
            paths |= {str(path) for path in project.parent.rglob("*.[ch]*") if path.suffix in _SUFFIXES}
    return {os.path.abspath(path) for path in paths}


def _write_compile_commands(request: BuildRequest, directory: Path) -> None:
    from neurontools.customop.building.request import write_compile_commands

    try:
        write_compile_commands(request, directory)
    except (NeuronToolsError, OSError) as error:
        console.notice(f"no compile_commands.json: {error}")


def _text(result: BuildResult, paint: Paint) -> str:
    state = paint(f"built in {result.seconds:.2f} s", "32") if result.rebuilt else paint("up to date", "32")
    return "\n".join(
        (
            f"{printable(str(result.path))}  {state}",
            *(printable(f"  {entry.library}::{entry.schema}") for entry in result.manifest.operators),
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
    """Return a function that colors text with an ANSI code, or leaves it plain: --color, then NO_COLOR and FORCE_COLOR."""
    wanted = color == "always" or (
        color == "auto"
        and not os.environ.get("NO_COLOR")
        and (terminal or bool(os.environ.get("FORCE_COLOR")))
    )
    return (lambda text, code: f"\x1b[{code}m{text}\x1b[0m") if wanted else plain


def plain(text: str, _code: str) -> str:
    """Return a text without color."""
    return text


def _colorize(text: str, paint: Paint) -> str:
    return "\n".join(_colorize_line(line, paint) for line in printable_lines(text).split("\n"))


def _colorize_line(line: str, paint: Paint) -> str:
    for word, code in ((": error: ", "1;31"), (": fatal error: ", "1;31"), (": warning: ", "1;35")):
        place, found, message = line.partition(word)
        if found and not line.startswith(" "):
            return f"{paint(place, '1')}: {paint(word[2:-1], code)} {message}"
    return paint(line, "32") if line.strip(" |~^\t") == "" and "^" in line else line
