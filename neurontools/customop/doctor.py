"""What building, running and debugging custom operators needs, and whether it is there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from neurontools.customop.building.toolchain import Compiler, find_compiler, home, prepare, toolchain_key
from neurontools.errors import TORCH_REMEDY, NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: what it is.
        ok: it is there and works.
        detail: which one, or what is wrong.
        needed: nothing can be built or run without it; else it is a convenience.
        purpose: what it is for.
        remedy: what to do when it is missing.
    """

    name: str
    ok: bool
    detail: str
    needed: bool = False
    purpose: str = ""
    remedy: str = ""


def examine(on_progress: Callable[[str], None] | None = None) -> tuple[Finding, ...]:
    """Look at everything, in the order people read it; builds the runtime when that was never built.

    Args:
        on_progress: called with one line before something that takes a while.
    """
    findings = [_system()]
    try:
        compiler = find_compiler()
    except NeuronToolsError as error:
        findings.append(
            Finding(
                "compiler", ok=False, detail=error.message, needed=True, purpose="build", remedy=error.remedy
            )
        )
    else:
        detail = f"{compiler.version} ({' '.join(compiler.command)})"
        findings += [
            Finding("compiler", ok=True, detail=detail, needed=True),
            _runtime(compiler, on_progress),
            _sanitizers(compiler, on_progress),
        ]
    findings += [
        _program("ccache", "compiling the same again at once", "apt-get install ccache"),
        _program("addr2line", "source lines in error messages", "apt-get install binutils"),
        _program("gdb", "neuron-customop debug", "apt-get install gdb"),
        _torch(),
    ]
    return tuple(findings)


def _system() -> Finding:
    known = platform.machine() in {"x86_64", "aarch64"}
    return Finding(
        "system",
        known and hasattr(os, "memfd_create"),
        f"{platform.system()} {platform.release()} {platform.machine()}",
        needed=True,
        purpose="everything",
        remedy="use Linux on x86-64 or aarch64",
    )


def _runtime(compiler: Compiler, on_progress: Callable[[str], None] | None) -> Finding:
    try:
        toolchain = prepare(compiler, on_progress)
        done = subprocess.run(
            [toolchain.worker],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except NeuronToolsError as error:
        return Finding(
            "runtime",
            ok=False,
            detail=error.message,
            needed=True,
            purpose="build",
            remedy=error.remedy,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _no_worker(str(error))
    # Without arguments the worker says how it is used: it was loaded and ran.
    return (
        Finding("runtime", ok=True, detail=str(toolchain.worker.parent), needed=True)
        if done.returncode == 2
        else (_no_worker(f"it ended with {done.returncode}"))
    )


def _no_worker(reason: str) -> Finding:
    return Finding(
        "runtime",
        ok=False,
        detail=f"the worker does not start: {reason}",
        needed=True,
        purpose="build",
        remedy=f"remove {home()}, or set XDG_CACHE_HOME to a directory that programs may run from",
    )


def _sanitizers(compiler: Compiler, on_progress: Callable[[str], None] | None) -> Finding:
    key = toolchain_key(compiler, sanitize=True)
    built = home() / f"tools-{key}"
    if built.is_dir():
        return Finding("sanitizers", ok=True, detail=str(built))
    try:
        prepare(compiler, on_progress, sanitize=True)
    except NeuronToolsError as error:
        unwritable = isinstance(error.__cause__, OSError)
        return Finding(
            "sanitizers",
            ok=False,
            detail=error.message,
            purpose="neuron-customop build --sanitize",
            remedy=error.remedy if unwritable else "use g++ with libasan and libubsan (apt-get install g++)",
        )
    return Finding("sanitizers", ok=True, detail=str(built))


def _program(name: str, purpose: str, remedy: str) -> Finding:
    found = shutil.which(name)
    return Finding(name, found is not None, found or "not installed", purpose=purpose, remedy=remedy)


def _torch() -> Finding:
    # Only looked for: importing it takes seconds.
    found = find_spec("torch") is not None
    return Finding(
        "torch",
        found,
        "installed" if found else "not installed",
        purpose="run, check and custom_op.load",
        remedy=TORCH_REMEDY,
    )
