"""Building a library, or finding that nothing has to be done."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop.building.freshness import build_key, up_to_date
from neurontools.customop.building.request import BuildRequest, check_request
from neurontools.customop.building.toolchain import find_compiler, home

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.customop.manifest import Manifest


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A built library: its file and facts, whether anything had to be done, and what the compiler warned about."""

    path: Path
    manifest: Manifest
    rebuilt: bool
    warnings: tuple[str, ...]
    seconds: float


def build(request: BuildRequest, on_progress: Callable[[str], None] | None = None) -> BuildResult:
    """Build a library, or find it built already; any number of processes may build the same one at once.

    The library file is replaced when the new one is whole: until then, and after a failure, the old one stays.

    Args:
        request: what to build.
        on_progress: called with one line before each step.

    Raises:
        CustomOpBuildError: bad request, compiler errors, or operators that break a rule.
        MissingDependencyError: there is no C++ compiler.
    """
    start = time.monotonic()
    say = on_progress or _ignore
    check_request(request)
    compiler = find_compiler()
    key = build_key(request, compiler)
    path = _library_path(request, key)
    current = up_to_date(path, key)
    if current is not None:
        return BuildResult(path, current, rebuilt=False, warnings=(), seconds=time.monotonic() - start)
    # Loaded late: a build that finds nothing to do takes a third of the time without them.
    from neurontools.customop.building.build_steps import make
    from neurontools.customop.building.toolchain import build_lock
    from neurontools.customop.package import write_package

    with build_lock(path, lambda: say(f"waiting for another build of {path.name}")):
        current = up_to_date(path, key)
        if current is not None:
            return BuildResult(path, current, rebuilt=False, warnings=(), seconds=time.monotonic() - start)
        made = make(request, compiler, key, path, say)
        write_package(path, made.manifest, made.parts)
    return BuildResult(
        path, made.manifest, rebuilt=True, warnings=made.warnings, seconds=time.monotonic() - start
    )


def _library_path(request: BuildRequest, key: str) -> Path:
    directory = request.directory or home() / "lib" / f"{request.name}-{key[:16]}"
    return Path(os.path.abspath(directory)) / f"lib{request.name}.so"


def _ignore(_line: str) -> None:
    return
