"""Run an operator under gdb: rebuild the library without optimization, load it into a Python started by gdb."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.package import Package

_FLAGS = ("-O0", "-g3")
# gdb takes many seconds to read the symbols of torch. It reads none until the kernel's library is loaded, then those
# that a backtrace needs. A second `run` reads all (second_run.gdb).
_STOP_AT_LIBRARY = (
    "set breakpoint pending on",
    "set pagination off",
    "set auto-solib-add off",
    "tcatch load -kernel[.]so",
    "run",
    *(f"sharedlibrary {name}" for name in ("neuron-customop-", "libpython", "_ctypes", "libffi", "libc[.]")),
)
_SECOND_RUN = Path(__file__).with_name("src") / "second_run.gdb"
_MAIN = "from neurontools.commands.customop import main; raise SystemExit(main())"


def debugger_for(
    package: Package,
    kernel: str,
    run: Sequence[str],
    commands: Sequence[str] = (),
    *,
    batch: bool = False,
    on_progress: Callable[[str], None],
) -> tuple[str, ...]:
    """Return the command line of a debugger for a kernel; gdb stops at its start.

    It needs NEURONTOOLS_CUSTOMOP_INPROCESS=1 in its environment.

    Args:
        package: the library; rebuilt without optimization if its sources exist.
        kernel: name of the kernel function.
        run: operator and inputs, the arguments of `neuron-customop run` after the library.
        commands: gdb commands to run at the start of the kernel.
        batch: exit after the commands.
        on_progress: called with progress messages.

    Raises:
        MissingDependencyError: gdb is not installed.
        CustomOpLibraryError: the library has sanitizers and cannot be rebuilt.
    """
    gdb = shutil.which("gdb")
    if gdb is None:
        raise MissingDependencyError(
            "debugging needs gdb, which is not installed", "apt-get install gdb, or dnf install gdb"
        )
    library = _for_debugger(package, on_progress)
    words = [gdb, "-q", *(("-batch",) if batch else ())]
    for setting in ("set debuginfod enabled off", "set auto-load python-scripts off"):
        words += ["-iex", setting]  # no questions and warnings about Python's own symbols
    at_kernel = (f"break {kernel}", "continue", f"source {_SECOND_RUN}")
    for command in (*_STOP_AT_LIBRARY, *at_kernel, *commands, "set pagination on"):
        words += ["-ex", command]
    words += ["--args", sys.executable, "-c", _MAIN, "run", str(library), *run]
    return tuple(words)


def _for_debugger(package: Package, on_progress: Callable[[str], None]) -> Path:
    manifest = package.manifest
    request = BuildRequest(
        manifest.name,
        tuple(map(Path, manifest.compute)),
        tuple(map(Path, manifest.shape)),
        None,
        (*manifest.cflags, *_FLAGS),
        manifest.multicore,
        manifest.release,
    )
    gone = [path for path in (*request.compute, *request.shape) if not os.path.exists(path)]
    try:
        if not gone:
            on_progress("building without optimization for the debugger")
            return build(request, on_progress).path
        reason = f"{gone[0]} does not exist"
    except MissingDependencyError as error:
        reason = error.message
    if manifest.sanitize:
        raise CustomOpLibraryError(
            f"cannot debug {package.path}: it has sanitizers and cannot be rebuilt: {reason}",
            "build it without --sanitize",
        )
    on_progress(f"debugging the optimized library: {reason}")
    return Path(package.path)
