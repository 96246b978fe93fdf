"""`load` and `load_library` with the signatures of torch_neuronx.xla_impl.custom_op.

Source: AWS Neuron documentation, "Neuron Custom C++ Operators Developer Guide".
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.base.text import printable_lines
from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.errors import CustomOpBuildError
from neurontools.customop.package import read_package
from neurontools.customop.torch_operators import LoadedLibrary, register

if TYPE_CHECKING:
    from collections.abc import Iterable

_logger = logging.getLogger("neurontools.customop")


def load(
    name: str,
    compute_srcs: Iterable[str | os.PathLike[str]],
    shape_srcs: Iterable[str | os.PathLike[str]],
    build_directory: str | os.PathLike[str] | None = None,
    extra_cflags: Iterable[str] = (),
    multicore: bool = False,
    verbose: bool = False,
    **ignored: object,
) -> LoadedLibrary:
    """Build a library, unless it is up to date, and register its operators.

    Args:
        name: the library is `lib<name>.so`.
        compute_srcs: C++ sources of the kernels.
        shape_srcs: C++ sources of the shape functions and NEURON_LIBRARY.
        build_directory: directory of the library, for a later `load_library`.
        extra_cflags: more compiler flags; `-DSTACK_SIZE=<bytes>` declares the stack.
        multicore: run every kernel on all GPSIMD cores.
        verbose: log the steps of the build.
        ignored: other parameters of torch's loader; a warning names them.

    Raises:
        CustomOpBuildError: the sources do not compile, or break a rule.
        CustomOpLibraryError: the operators cannot be registered.
        MissingDependencyError: a C++ compiler or torch is not installed.
    """
    if ignored:
        _logger.warning("custom_op.load ignores %s", ", ".join(sorted(ignored)))
    request = BuildRequest(
        name,
        _paths("compute_srcs", compute_srcs),
        _paths("shape_srcs", shape_srcs),
        Path(build_directory) if build_directory is not None else None,
        tuple(extra_cflags or ()),
        bool(multicore),
    )
    result = build(request, _print_line if verbose else None)
    for line in result.warnings:
        _logger.warning("%s", printable_lines(line))
    if verbose:
        _print_line(f"{'built' if result.rebuilt else 'up to date:'} {result.path}")
    return load_library(result.path)


def load_library(path: str | os.PathLike[str]) -> LoadedLibrary:
    """Register the operators of a built library; loading the same one again is harmless.

    Raises:
        CustomOpLibraryError: the file is not a custom operator library, or its operators cannot be registered.
        MissingDependencyError: torch is not installed.
    """
    return register(read_package(path))


def _paths(name: str, given: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    if isinstance(given, str | os.PathLike):
        raise CustomOpBuildError(f"{name} is a single path", f"pass a list: {name}=[{os.fspath(given)!r}]")
    return tuple(Path(path) for path in given)


def _print_line(line: str) -> None:
    # torch's loader prints too with `verbose=True`.
    sys.stderr.write(f"{printable_lines(line)}\n")
