"""gdb on an operator: the library rebuilt for a debugger and loaded into the Python that gdb starts."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.package import Package

_FLAGS = ("-O0", "-g3")
# The symbols of torch take gdb many seconds: until the kernel's library is loaded it reads none, then those that a
# backtrace goes through. A second `run` reads all of them.
_TO_THE_LIBRARY = (
    "set breakpoint pending on",
    "set pagination off",
    "set auto-solib-add off",
    "tcatch load -kernel[.]so",
    "run",
    *(f"sharedlibrary {name}" for name in ("neuron-customop-", "libpython", "_ctypes", "libffi", "libc[.]")),
)
_MAIN = "from neurontools.commands.customop import main; raise SystemExit(main())"


@dataclass(frozen=True, slots=True)
class Debugger:
    """How a debugger is started: its words, and what its environment has on top of ours."""

    command: tuple[str, ...]
    environ: dict[str, str]


def debugger_for(
    package: Package,
    kernel: str,
    run: Sequence[str],
    commands: Sequence[str] = (),
    *,
    batch: bool = False,
    on_progress: Callable[[str], None],
) -> Debugger:
    """Return how to debug a kernel: gdb stops at its beginning.

    Args:
        package: the library; built again without optimisation from its sources when they are still there.
        kernel: name of the kernel function.
        run: operator and inputs, as `neuron-customop run` takes them behind the library.
        commands: what gdb does once the kernel was reached.
        batch: end after the commands.
        on_progress: called with lines for a person.

    Raises:
        MissingDependencyError: there is no gdb.
        CustomOpLibraryError: the library has sanitizers and cannot be built again.
    """
    gdb = shutil.which("gdb")
    if gdb is None:
        raise MissingDependencyError(
            "debugging needs gdb, which is not installed", "apt-get install gdb, or dnf install gdb"
        )
    library = _for_debugger(package, on_progress)
    words = [gdb, "-q", *(("-batch",) if batch else ())]
    for setting in ("set debuginfod enabled off", "set auto-load python-scripts off"):
        words += ["-iex", setting]  # neither asks nor warns about Python's own
    here = (f"break {kernel}", "continue", "set auto-solib-add on")
    for command in (*_TO_THE_LIBRARY, *here, *commands, "set pagination on"):
        words += ["-ex", command]
    words += ["--args", sys.executable, "-c", _MAIN, "run", str(library), *run]
    return Debugger(tuple(words), {env.CUSTOMOP_INPROCESS: "1"})


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
            on_progress("building without optimisation, for the debugger")
            return build(request, on_progress).path
        reason = f"{gone[0]} is gone"
    except MissingDependencyError as error:
        reason = error.message
    if manifest.sanitize:
        raise CustomOpLibraryError(
            f"cannot debug {package.path}: it has sanitizers, and cannot be built again: {reason}",
            "build it without --sanitize",
        )
    on_progress(f"debugging the optimised library: {reason}")
    return Path(package.path)
