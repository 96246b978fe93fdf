"""What to build: sources, flags, mode; and which requests make no sense."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neurontools.customop.errors import CustomOpBuildError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_STACK_BYTES = 400 * 1024  # customops.md section 4.11
RESERVED_NAME = "builtin"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")
_STACK = "-DSTACK_SIZE="


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build.

    Args:
        name: the library is `lib<name>.so`.
        compute: sources of the kernels.
        shape: sources of the shape functions and the registration.
        directory: where the library goes; a directory of ours when None.
        cflags: more compiler flags; `-DSTACK_SIZE=<bytes>` declares the stack.
        multicore: run every kernel on all GPSIMD cores.
        release: leave the checks of element accessors out.
        sanitize: add the compiler's address and undefined-behaviour sanitizers.
    """

    name: str
    compute: tuple[Path, ...]
    shape: tuple[Path, ...]
    directory: Path | None = None
    cflags: tuple[str, ...] = ()
    multicore: bool = False
    release: bool = False
    sanitize: bool = False

    @property
    def stack_bytes(self) -> int:
        """The declared stack size, 0 when none is.

        Raises:
            CustomOpBuildError: it is no number, or above the limit.
        """
        return _stack_bytes(self.cflags)


def check_request(request: BuildRequest) -> None:
    """Check names, sources and flags.

    Raises:
        CustomOpBuildError: something cannot be built, and why.
    """
    if request.name == RESERVED_NAME:
        raise CustomOpBuildError('the library name "builtin" is reserved', "choose another name")
    if not _NAME.match(request.name):
        raise CustomOpBuildError(
            f'library name "{request.name}" does not fit lib<name>.so', "choose another name"
        )
    for kind, sources in (("compute", request.compute), ("shape", request.shape)):
        if not sources:
            raise CustomOpBuildError(f"no {kind} sources given", f"name at least one {kind} source")
        for source in sources:
            if not source.is_file():
                raise CustomOpBuildError(f"{kind} source {source} is not there", "check the path")
    _stack_bytes(request.cflags)


def with_stack(request: BuildRequest, stack_bytes: int) -> BuildRequest:
    """Return the request with a declared stack size."""
    return replace(request, cflags=(*request.cflags, f"{_STACK}{stack_bytes}"))


def absolute(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return absolute forms of paths; links stay links."""
    return tuple(os.path.abspath(path) for path in paths)


def _stack_bytes(cflags: Sequence[str]) -> int:
    size = 0
    for flag in cflags:
        if not flag.startswith(_STACK):
            continue
        try:
            size = int(flag.removeprefix(_STACK), 0)
        except ValueError:
            size = -1
        if size < 0:
            raise CustomOpBuildError(f"{flag} is not a number of bytes", f"use {_STACK}<bytes>")
        if size > MAX_STACK_BYTES:
            raise CustomOpBuildError(
                f"a stack of {size} bytes; the limit is {MAX_STACK_BYTES}", "use less stack"
            )
    return size
