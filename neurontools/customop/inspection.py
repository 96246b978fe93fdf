"""Looking into a library file, and opening it: what it says of itself, and whether the loader agrees."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.customop.building.freshness import changed_sources
from neurontools.customop.environment import check_instance
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.package import Package, executable_file, read_package
from neurontools.customop.signature import parse_description

if TYPE_CHECKING:
    from neurontools.customop.manifest import OperatorEntry

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a library file: what it is, its size and digest."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a library file says of itself.

    Args:
        package: its contents.
        parts: its parts.
        changed: source files that are gone or differ from what it was built from.
    """

    package: Package
    parts: tuple[Part, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A library that was loaded into a worker.

    Args:
        package: its contents.
        operators: what it registered there, the same as its manifest says.
        elapsed_ns: how long loading took.
    """

    package: Package
    operators: tuple[OperatorEntry, ...]
    elapsed_ns: int


def inspect_library(path: str | os.PathLike[str]) -> Inspection:
    """Look into a library file; no code of it runs.

    Raises:
        CustomOpLibraryError: it is not there, not ours, damaged, or for another computer or version.
    """
    package = read_package(path)
    contents = (
        ("shape", package.parts.shape),
        ("kernel", package.parts.kernel),
        ("worker", package.parts.worker),
    )
    parts = tuple(Part(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents)
    return Inspection(package, parts, changed_sources(package.manifest.sources))


def open_library(path: str | os.PathLike[str]) -> Opened:
    """Load a library into a worker process and ask it for its operators; needs no torch.

    Raises:
        CustomOpLibraryError: it cannot be loaded, or holds other operators than it says.
        UnsupportedInstanceError: the machine has no cores for custom operators.
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
    names = [kernel.name for kernel in kernels]
    if promised != found or any(names[entry.kernel_index] != entry.kernel for entry in entries):
        raise CustomOpLibraryError(
            f"cannot load {path}: it registers other operators than its manifest lists", "build it again"
        )
    return Opened(package, entries, elapsed_ns)


def _describe(package: Package, part: bytes, what: str) -> str:
    program = executable_file("neuron-customop-worker", package.parts.worker)
    library = executable_file("neuron-customop-part", part)
    try:
        done = subprocess.run(
            [f"/proc/self/fd/{program}", "describe", str(library)],
            pass_fds=(program, library),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CustomOpLibraryError(f"cannot load the {what} of {package.path}: {error}") from error
    finally:
        os.close(program)
        os.close(library)
    if done.returncode != 0:
        reason = done.stderr.strip() or f"the worker ended with {done.returncode}"
        raise CustomOpLibraryError(f"cannot load the {what} of {package.path}: {reason}", "build it again")
    return done.stdout
