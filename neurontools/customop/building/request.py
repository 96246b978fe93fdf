"""A build request: sources, flags, mode; its validation, and its `compile_commands.json` for editors."""

from __future__ import annotations

import glob
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.base.files import read_input, write_atomic
from neurontools.base.json_reader import load_json
from neurontools.config import types
from neurontools.config.reader import FileError, FormatError, read_yaml
from neurontools.config.types import FLAG, NUMBER, TEXT, WHOLE, WORDS
from neurontools.customop.building.toolchain import build_lock, find_compiler, user_flags
from neurontools.customop.errors import CustomOpBuildError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.config.reader import Section

MAX_STACK_BYTES = 400 * 1024  # documented limit
RESERVED_NAME = "builtin"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")
_STACK = "-DSTACK_SIZE="
COMPILE_COMMANDS = "compile_commands.json"
_Entry = dict[str, object]
FILE_NAME = "customop.yaml"
_TEXTS = types.list_of(TEXT, "a list of texts")
_INPUTS = types.list_of(WORDS, "a list of texts")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build request.

    Args:
        name: the library is `lib<name>.so`.
        compute: sources of the kernels.
        shape: sources of the shape functions and the registration.
        directory: directory of the library; None: in our cache directory.
        cflags: more compiler flags; `-DSTACK_SIZE=<bytes>` declares the stack.
        multicore: run every kernel on all GPSIMD cores.
        release: omit the bounds checks of element accessors.
        sanitize: add the compiler's address and undefined-behaviour sanitizers.
    """

    name: str
    compute: tuple[Path, ...]
    shape: tuple[Path, ...]
    directory: Path | None = None
    cflags: tuple[str, ...] = ()
    multicore: bool = False
    release: bool = False
    sanitize: bool = False

    @property
    def stack_bytes(self) -> int:
        """The declared stack size, 0 if not declared.

        Raises:
            CustomOpBuildError: it is not a number, or above the limit.
        """
        size = 0
        for flag in self.cflags:
            if not flag.startswith(_STACK):
                continue
            try:
                size = int(flag.removeprefix(_STACK), 0)
            except ValueError:
                size = -1
            if size < 0:
                raise CustomOpBuildError(f"invalid {flag}: must be a number of bytes", f"use {_STACK}<bytes>")
            if size > MAX_STACK_BYTES:
                raise CustomOpBuildError(
                    f"stack size {size} is above the limit of {MAX_STACK_BYTES} bytes", "use less stack"
                )
        return size


def check_request(request: BuildRequest) -> None:
    """Check names, sources and flags.

    Raises:
        CustomOpBuildError: a name, source or flag is invalid.
    """
    if request.name == RESERVED_NAME:
        raise CustomOpBuildError('the library name "builtin" is reserved', "choose another name")
    if not _NAME.match(request.name):
        raise CustomOpBuildError(f'invalid library name "{request.name}"', "use letters, digits and _ . + -")
    for kind, sources in (("compute", request.compute), ("shape", request.shape)):
        if not sources:
            raise CustomOpBuildError(f"no {kind} sources given", f"give at least one {kind} source")
        for source in sources:
            if not source.is_file():
                raise CustomOpBuildError(f"{kind} source {source} does not exist", "check the path")
    _ = request.stack_bytes  # raises if it is invalid


def with_stack(request: BuildRequest, stack_bytes: int) -> BuildRequest:
    """Return the request with a declared stack size."""
    return replace(request, cflags=(*request.cflags, f"{_STACK}{stack_bytes}"))


def absolute(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return absolute paths without resolving links."""
    return tuple(os.path.abspath(path) for path in paths)


def write_compile_commands(request: BuildRequest, directory: Path) -> Path:
    """Write the compile commands of a request's sources and return the file; entries of other sources in it stay.

    Args:
        request: the build request.
        directory: directory of the file: editors search the parents of a source, and `build` in each of them.

    Raises:
        MissingDependencyError: no C++ compiler is installed.
        CustomOpBuildError: the cache directory cannot be written.
        OSError: the file cannot be written.
    """
    path = Path(os.path.abspath(directory)) / COMPILE_COMMANDS
    entries = _entries(request)
    if _merged(_read(path), entries) == _read(path):
        return path
    with build_lock(path, lambda: None):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(_merged(_read(path), entries), indent=1) + "\n", sync=False)
    return path


def _entries(request: BuildRequest) -> list[_Entry]:
    compiler = find_compiler()
    flags = [*compiler.command, *user_flags(compiler), *request.cflags]
    directory = str(Path.cwd())
    return [
        {
            "directory": _as_utf8(directory),
            "file": _as_utf8(source),
            "arguments": [*map(_as_utf8, flags), "-c", _as_utf8(source)],
        }
        for source in dict.fromkeys((*absolute(request.compute), *absolute(request.shape)))
    ]


def _as_utf8(path: str) -> str:
    """Return a path as programs read it that expect UTF-8 whatever the locale is."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _merged(existing: list[_Entry], entries: list[_Entry]) -> list[_Entry]:
    files = {entry["file"] for entry in entries}
    return sorted(
        [*(entry for entry in existing if entry.get("file") not in files), *entries],
        key=lambda entry: str(entry.get("file", "")),
    )


def _read(path: Path) -> list[_Entry]:
    try:
        raw = load_json(path.read_bytes(), any_text=True)
    except (OSError, ValueError):
        return []
    return [entry for entry in raw if isinstance(entry, dict)] if isinstance(raw, list) else []


@dataclass(frozen=True, slots=True)
class CheckWords:
    """Check options of an operator, like those of `neuron-customop check`.

    Args:
        inputs: values of `--input`.
        reference: value of `--reference`, "" for none.
        backward: values of `--backward`; None: found by name.
        tolerance: value of `--tolerance`; None: torch's.
    """

    inputs: tuple[str, ...] = ()
    reference: str = ""
    backward: tuple[str, ...] | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """A project file: path, build request, check options by operator."""

    path: Path
    request: BuildRequest
    checks: dict[str, CheckWords]

    @property
    def library(self) -> Path:
        """Path of the built library."""
        return Path(os.path.abspath(self.request.directory or ".")) / f"lib{self.request.name}.so"


def find_project(place: Path) -> Path | None:
    """Return the path of a project file, given it or its directory; None for other paths."""
    path = place / FILE_NAME if place.is_dir() else place
    return path if path.is_file() else None


def load_project(path: Path) -> Project:
    """Read a project file. Its paths are relative to its directory and may have wildcards.

    Raises:
        CustomOpBuildError: it cannot be read, is not YAML, or has mistakes, all of which are listed.
    """
    try:
        root = read_yaml(read_input(path, CustomOpBuildError))
    except FormatError as error:
        raise CustomOpBuildError(error.problem.located(str(path)), "write YAML: key: value") from error
    section = root.section("keys: at least name, compute and shape")
    request = BuildRequest(
        name=section.require("name", TEXT),
        compute=_read_sources(section, "compute", path.parent),
        shape=_read_sources(section, "shape", path.parent),
        directory=path.parent / section.read("output", TEXT, "."),
        cflags=tuple(section.read("cflags", _TEXTS, [])),
        multicore=section.read("multicore", FLAG, default=False),
        release=section.read("release", FLAG, default=False),
        sanitize=section.read("sanitize", FLAG, default=False),
    )
    stack_size = section.read("stack_size", WHOLE, None)
    checks = {
        name: _read_check(value.section("keys: input, reference, backward, tolerance"))
        for name, value in section.section("check", "operators and what to check them with") or ()
    }
    section.finish()
    if root.problems:
        message = FileError(str(path), root.problems).message
        raise CustomOpBuildError(message, "'neurontools help neuron-customop' lists the keys")
    return Project(path, request if stack_size is None else with_stack(request, stack_size), checks)


def _read_check(section: Section) -> CheckWords:
    backward = section.read("backward", _TEXTS, None)
    words = CheckWords(
        inputs=tuple(section.read("input", _INPUTS, [])),
        reference=section.read("reference", TEXT, ""),
        backward=None if backward is None else tuple(backward),
        tolerance=section.read("tolerance", NUMBER, None),
    )
    section.finish()
    return words


def _read_sources(section: Section, key: str, directory: Path) -> tuple[Path, ...]:
    found: dict[Path, None] = {}
    for pattern in section.require(key, _TEXTS):
        whole = os.path.join(directory, pattern)
        matches = sorted(glob.glob(whole)) if glob.has_magic(pattern) else [whole]
        if not matches:
            section.fail(key, f"no file matches {pattern}")
        found.update(dict.fromkeys(Path(match) for match in matches))
    return tuple(found)
