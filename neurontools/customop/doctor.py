"""Check the components that custom operators need: compiler, runtime, sanitizers, tools, torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from neurontools.customop.building.toolchain import (
    Compiler,
    find_compiler,
    home,
    prepare,
    run_program,
    toolchain_key,
)
from neurontools.errors import TORCH_REMEDY, NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable


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
