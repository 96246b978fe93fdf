"""Which C++ compiler builds custom operators: $CXX, g++, clang++, or the one of the PyPI package `ziglang`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from neurontools.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping

_INSTALL = "install g++ (apt-get install g++, dnf install gcc-c++) or pip install ziglang, or set CXX"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler that answers.

    Args:
        command: the words that start it.
        version: first line of what it says of itself.
        is_clang: whether it takes clang's options (clang++, zig).
        is_zig: whether it is zig: its very first compile takes about a minute, and its linker has no --wrap.
        launcher: what the command is given to when it compiles: ccache, where that is installed.
    """

    command: tuple[str, ...]
    version: str
    is_clang: bool
    is_zig: bool = False
    launcher: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What object files made by it depend on."""
        return " ".join(self.command) + "\n" + self.version


def find_compiler(environ: Mapping[str, str] | None = None) -> Compiler:
    """Return the compiler to use.

    Raises:
        MissingDependencyError: there is none, or the one that CXX names does not work.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get("CXX", "").strip()
    if chosen:
        compiler = _probe(tuple(shlex.split(chosen)), environ)
        if compiler is None:
            raise MissingDependencyError(f"the compiler that CXX names does not work: {chosen}", _INSTALL)
        return compiler
    for name in ("g++", "clang++"):
        compiler = _probe((name,), environ)
        if compiler is not None:
            return compiler
    if find_spec("ziglang") is not None:
        compiler = _probe((sys.executable, "-m", "ziglang", "c++"), environ)
        if compiler is not None:
            return compiler
    raise MissingDependencyError("no C++ compiler found: custom operators need one", _INSTALL)


def _probe(command: tuple[str, ...], environ: Mapping[str, str]) -> Compiler | None:
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, *command[1:], "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0 or not answer.stdout.strip():
        return None
    is_zig = "ziglang" in command
    version = answer.stdout.splitlines()[0].strip()
    launcher = () if is_zig else _launcher(program, environ)
    return Compiler((program, *command[1:]), version, is_zig or "clang" in answer.stdout, is_zig, launcher)


def _launcher(program: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    # Distributions also install links to ccache under the compilers' names: once is enough.
    ccache = shutil.which("ccache", path=environ.get("PATH"))
    if ccache is None or os.path.basename(os.path.realpath(program)) == "ccache":
        return ()
    return (ccache,)
