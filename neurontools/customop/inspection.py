"""Inspect a library file, or load it into a worker and compare its operators with the manifest."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from neurontools.customop.building.freshness import changed_sources
from neurontools.customop.building.toolchain import run_program
from neurontools.customop.environment import check_instance
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.package import Package, executable_file, read_package
from neurontools.customop.signature import parse_description

if TYPE_CHECKING:
    from neurontools.customop.package import OperatorEntry

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a library file: name, size and digest."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """The contents of a library file.

    Args:
        package: its contents.
        parts: its parts.
        changed: source files that are missing or have changed since the build.
    """

    package: Package
    parts: tuple[FilePart, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A library that was loaded into a worker.

    Args:
        package: its contents.
        operators: the operators that it registered, equal to those of its manifest.
        elapsed_ns: time to load it.
    """

    package: Package
    operators: tuple[OperatorEntry, ...]
    elapsed_ns: int


def inspect_library(path: str | os.PathLike[str]) -> Inspection:
    """Read a library file without running its code.

    Raises:
        CustomOpLibraryError: the file is missing, not a custom operator library, damaged, or for another computer or version.
    """
    package = read_package(path)
    contents = asdict(package.parts).items()
    parts = tuple(FilePart(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents)
    return Inspection(package, parts, changed_sources(package.manifest.sources))


def open_library(path: str | os.PathLike[str]) -> Opened:
    """Load a library into a worker process and list its operators, without torch.

    Raises:
        CustomOpLibraryError: it cannot be loaded, or has other operators than its manifest.
        UnsupportedInstanceError: the machine's cores cannot run custom operators.
    """
    package = read_package(path)
    check_instance()
    start = time.monotonic_ns()
    registered, _ = parse_description(_describe(package, package.parts.shape, "shape functions"))
    _, kernels = parse_description(_describe(package, package.parts.kernel, "kernels"))
    elapsed_ns = time.monotonic_ns() - start
    entries = package.manifest.operators
    promised = [(entry.library, entry.name, entry.kernel) for entry in entries]
    found = [(operator.library, operator.name, operator.kernel) for operator in registered]
    names = dict(enumerate(kernel.name for kernel in kernels))
    if promised != found or any(names.get(entry.kernel_index) != entry.kernel for entry in entries):
        raise CustomOpLibraryError(
            f"cannot load {path}: its operators differ from its manifest", "rebuild it"
        )
    return Opened(package, entries, elapsed_ns)


def _describe(package: Package, part: bytes, what: str) -> str:
    program = executable_file("neuron-customop-worker", package.parts.worker)
    library = executable_file("neuron-customop-part", part)
    try:
        command = (f"/proc/self/fd/{program}", "describe", str(library))
        done = run_program(command, pass_fds=(program, library), timeout_s=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CustomOpLibraryError(f"cannot load the {what} of {package.path}: {error}") from error
    finally:
        os.close(program)
        os.close(library)
    if done.returncode != 0:
        reason = done.stderr.strip() or f"the worker exited with code {done.returncode}"
        raise CustomOpLibraryError(f"cannot load the {what} of {package.path}: {reason}", "rebuild it")
    return done.stdout
