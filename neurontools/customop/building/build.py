"""Build a library if it is not up to date."""

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

    from neurontools.customop.package import Manifest


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A built library: file, manifest, whether it was rebuilt, warnings of the compiler, duration."""

    path: Path
    manifest: Manifest
    rebuilt: bool
    warnings: tuple[str, ...]
    seconds: float


def build(request: BuildRequest, on_progress: Callable[[str], None] | None = None) -> BuildResult:
    """Build a library if it is not up to date. Several processes may build the same library at once.

    The file is replaced atomically; after a failure the old one stays.

    Args:
        request: the build request.
        on_progress: called with one line before each step.

    Raises:
        CustomOpBuildError: invalid request, compiler errors, or invalid operators.
        MissingDependencyError: no C++ compiler is installed.
    """
    start = time.monotonic()
    report = on_progress or (lambda _line: None)
    check_request(request)
    compiler = find_compiler()
    key = build_key(request, compiler)
    path = _library_path(request, key)
    manifest = up_to_date(path, key)
    warnings: tuple[str, ...] = ()
    rebuilt = False
    if manifest is None:
        # Imported late: they triple the time of a build that has nothing to do.
        from neurontools.customop.building.build_steps import build_library
        from neurontools.customop.building.toolchain import build_lock
        from neurontools.customop.package import write_package

        with build_lock(path, lambda: report(f"waiting for another build of {path.name}")):
            manifest = up_to_date(path, key)
            if manifest is None:
                built = build_library(request, compiler, key, path, report)
                write_package(path, built.manifest, built.parts)
                manifest, warnings, rebuilt = built.manifest, built.warnings, True
    return BuildResult(path, manifest, rebuilt, warnings, time.monotonic() - start)


def _library_path(request: BuildRequest, key: str) -> Path:
    directory = request.directory or home() / "lib" / f"{request.name}-{key[:16]}"
    return Path(os.path.abspath(directory)) / f"lib{request.name}.so"
