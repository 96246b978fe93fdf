"""Starting the compiler: units to objects, objects to a library, a library to its description."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop.diagnostics import Diagnostics, user_diagnostics
from neurontools.customop.errors import CustomOpBuildError
from neurontools.customop.toolchain import BASE_FLAGS, INCLUDE, Toolchain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TRAPS = "-Wl,--wrap=__cxa_throw,--wrap=abort,--wrap=exit,--wrap=__assert_fail"
_UNDECLARED = re.compile(
    r"error: (?:[‘'](?P<gcc>[\w:]+)['’] (?:was not declared|has not been declared)|use of undeclared identifier '(?P<clang>\w+)')"
)
_DESCRIBE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A generated translation unit.

    Args:
        path: where it is written.
        text: its contents.
        source: the user's file that it includes, as the user gave its path.
    """

    path: Path
    text: str
    source: Path

    @property
    def object(self) -> Path:
        """The object file."""
        return self.path.with_suffix(".o")

    @property
    def dependencies(self) -> Path:
        """The file in which the compiler lists what the unit includes."""
        return self.path.with_suffix(".d")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What compiling gave beside objects: warnings about the user's files, and all files of the user that were read."""

    warnings: tuple[str, ...]
    sources: tuple[Path, ...]


def compile_units(
    toolchain: Toolchain, units: Sequence[Unit], flags: Sequence[str], owners: Mapping[str, str]
) -> Compiled:
    """Compile units, several at once.

    Args:
        toolchain: the compiler.
        units: what to compile.
        flags: optimisation, warnings and the user's flags.
        owners: kernel name -> operator that uses it, for the message when a kernel is not there.

    Raises:
        CustomOpBuildError: the compiler found errors; the message holds its lines about the user's files.
    """
    with ThreadPoolExecutor(max_workers=min(len(units), os.cpu_count() or 1)) as pool:
        outcomes = list(pool.map(lambda unit: _compile(toolchain, unit, flags), units))
    warnings: list[str] = []
    sources: list[Path] = []
    for unit, (code, output) in zip(units, outcomes, strict=True):
        told = _diagnose(output, unit)
        if code != 0:
            raise _failure(unit, output, told, owners)
        if not unit.object.exists():
            raise CustomOpBuildError(
                f"{' '.join(toolchain.compiler.command)} succeeded without an object file",
                "set CXX to a C++ compiler",
            )
        warnings.extend(told.warnings)
        sources.extend(_dependencies(unit))
    return Compiled(tuple(warnings), tuple(sources))


def link(toolchain: Toolchain, objects: Sequence[Path], library: Path, sources: Sequence[Path]) -> None:
    """Link objects and the runtime into a shared library.

    Raises:
        CustomOpBuildError: a symbol is missing or defined twice.
    """
    inputs = [str(path) for path in (*objects, *toolchain.objects)]
    command = [*toolchain.compiler.command, "-shared", _TRAPS, "-Wl,-z,defs", *inputs, "-o", str(library)]
    code, output = _run(command)
    if code != 0:
        names = {os.path.abspath(source): str(source) for source in sources}
        lines = user_diagnostics(output, names, (str(INCLUDE), str(library.parent))).errors
        details = "\n".join(lines or output.splitlines()[-5:])
        raise CustomOpBuildError(f"cannot link {', '.join(map(str, sources))}\n{details}")


def describe(toolchain: Toolchain, library: Path, what: str) -> str:
    """Return the description of a library, read by loading it into a process of its own.

    Raises:
        CustomOpBuildError: it cannot be loaded, or its static initialisation crashes.
    """
    with library.open("rb") as file:
        try:
            result = subprocess.run(
                [toolchain.worker, "describe", str(file.fileno())],
                pass_fds=(file.fileno(),),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_DESCRIBE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CustomOpBuildError(f"loading {what} does not end", "look at their static objects") from None
    if result.returncode != 0:
        reason = result.stderr.strip() or f"ended with {result.returncode}"
        raise CustomOpBuildError(f"loading {what} fails: {reason}", "look at their static objects")
    return result.stdout


def _compile(toolchain: Toolchain, unit: Unit, flags: Sequence[str]) -> tuple[int, str]:
    unit.path.write_text(unit.text, encoding="utf-8")
    clang = ("-Wno-c++11-narrowing", "-fno-color-diagnostics") if toolchain.compiler.is_clang else ()
    return _run(
        [
            *toolchain.compiler.command,
            *BASE_FLAGS,
            "-Wno-narrowing",
            *clang,
            "-isystem",
            str(INCLUDE),
            *flags,
            "-MMD",
            "-MF",
            str(unit.dependencies),
            "-c",
            str(unit.path),
            "-o",
            str(unit.object),
        ]
    )


def _run(command: Sequence[str]) -> tuple[int, str]:
    environ = {**os.environ, "LC_ALL": "C"}
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environ,
        check=False,
    )
    return result.returncode, result.stdout


def _diagnose(output: str, unit: Unit) -> Diagnostics:
    names = {os.path.abspath(unit.source): str(unit.source)}
    return user_diagnostics(output, names, (str(INCLUDE), str(unit.path.parent)))


def _failure(unit: Unit, output: str, told: Diagnostics, owners: Mapping[str, str]) -> CustomOpBuildError:
    missing = _UNDECLARED.search(output)
    name = (missing["gcc"] or missing["clang"]) if missing else ""
    if not told.errors and name in owners:
        return CustomOpBuildError(
            f"operator {owners[name]}: its kernel function {name} is not defined in {unit.source}",
            "the third argument of m.def is the name of a function in the compute sources",
        )
    if not told.errors and "overloaded" in output:
        return CustomOpBuildError(
            f"a kernel function in {unit.source} is overloaded", "give kernels different names"
        )
    lines = told.errors or tuple(output.splitlines()[:20])
    return CustomOpBuildError("\n".join((f"cannot compile {unit.source}", *lines)))


def _dependencies(unit: Unit) -> list[Path]:
    text = unit.dependencies.read_text(encoding="utf-8", errors="surrogateescape")
    listed = text.replace("\\\n", " ").partition(": ")[2]
    names = [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", listed.strip())]
    paths = [Path(os.path.abspath(name)) for name in names if name]
    return [path for path in paths if path != Path(os.path.abspath(unit.path))]
