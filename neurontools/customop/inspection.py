"""Inspection of a library file, its trial load into a worker, and the components that custom operators need."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from neurontools.customop.building.freshness import changed_sources
from neurontools.customop.building.toolchain import (
    Compiler,
    find_compiler,
    home,
    prepare,
    run_program,
    toolchain_key,
)
from neurontools.customop.environment import check_instance
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.package import OperatorEntry, Package, executable_file, read_package
from neurontools.customop.signature import parse_description
from neurontools.errors import TORCH_REMEDY, NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable


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


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """The status of one component.

    Args:
        name: the component.
        ok: whether it is installed and works.
        detail: version or path, or the problem.
        needed: whether it is required; else it is optional.
        purpose: what it is used for.
        remedy: how to install or repair it.
    """

    name: str
    ok: bool
    detail: str
    needed: bool = False
    purpose: str = ""
    remedy: str = ""


def check_components(on_progress: Callable[[str], None] | None = None) -> tuple[ComponentStatus, ...]:
    """Check all components; builds the runtime if it was never built.

    Args:
        on_progress: called with one line before a slow check.
    """
    statuses = [_system()]
    try:
        compiler = find_compiler()
    except NeuronToolsError as error:
        missing = ComponentStatus("compiler", False, error.message, True, "build", error.remedy)
        statuses.append(missing)
    else:
        detail = f"{compiler.version} ({' '.join(compiler.command)})"
        statuses += [
            ComponentStatus("compiler", True, detail, needed=True),
            _runtime(compiler, on_progress),
            _sanitizers(compiler, on_progress),
        ]
    statuses += [
        _program("ccache", "fast repeated builds", "apt-get install ccache"),
        _program("addr2line", "source lines in error messages", "apt-get install binutils"),
        _program("gdb", "neuron-customop debug", "apt-get install gdb"),
        _torch(),
    ]
    return tuple(statuses)


def _system() -> ComponentStatus:
    known = platform.machine() in {"x86_64", "aarch64"}
    return ComponentStatus(
        "system",
        known and hasattr(os, "memfd_create"),
        f"{platform.system()} {platform.release()} {platform.machine()}",
        needed=True,
        purpose="everything",
        remedy="use Linux on x86-64 or aarch64",
    )


def _runtime(compiler: Compiler, on_progress: Callable[[str], None] | None) -> ComponentStatus:
    try:
        toolchain = prepare(compiler, on_progress)
        done = run_program([toolchain.worker], timeout_s=60.0)
    except NeuronToolsError as error:
        return ComponentStatus("runtime", False, error.message, True, "build", error.remedy)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        # Without arguments the worker prints its usage and exits with 2: it was loaded and ran.
        if done.returncode == 2:
            return ComponentStatus("runtime", True, str(toolchain.worker.parent), needed=True)
        reason = f"exit code {done.returncode}"
    remedy = f"remove {home()}, or set XDG_CACHE_HOME to a directory that allows executables"
    return ComponentStatus("runtime", False, f"the worker does not start: {reason}", True, "build", remedy)


def _sanitizers(compiler: Compiler, on_progress: Callable[[str], None] | None) -> ComponentStatus:
    built = home() / f"tools-{toolchain_key(compiler, sanitize=True)}"
    try:
        if not built.is_dir():
            prepare(compiler, on_progress, sanitize=True)
    except NeuronToolsError as error:
        unwritable = isinstance(error.__cause__, OSError)
        remedy = error.remedy if unwritable else "use g++ with libasan and libubsan (apt-get install g++)"
        return ComponentStatus(
            "sanitizers", False, error.message, purpose="neuron-customop build --sanitize", remedy=remedy
        )
    return ComponentStatus("sanitizers", True, str(built))


def _program(name: str, purpose: str, remedy: str) -> ComponentStatus:
    found = shutil.which(name)
    return ComponentStatus(name, found is not None, found or "not installed", purpose=purpose, remedy=remedy)


def _torch() -> ComponentStatus:
    # Not imported: that takes seconds.
    found = find_spec("torch") is not None
    return ComponentStatus(
        "torch",
        found,
        "installed" if found else "not installed",
        purpose="run, check and custom_op.load",
        remedy=TORCH_REMEDY,
    )
