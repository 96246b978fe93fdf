"""Building a library: shape sources, operator table, kernels, package; nothing is done when nothing changed."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neurontools.customop import abi
from neurontools.customop.compilation import Unit, compile_units, describe, link
from neurontools.customop.compilers import Compiler, find_compiler
from neurontools.customop.errors import CustomOpBuildError, CustomOpLibraryError
from neurontools.customop.manifest import Manifest, OperatorEntry, SourceEntry
from neurontools.customop.package import Parts, read_package, write_package
from neurontools.customop.signature import (
    DescribedKernel,
    DescribedOperator,
    check_kernel,
    check_operators,
    parse_description,
)
from neurontools.customop.toolchain import HERE, Toolchain, home, prepare
from neurontools.customop.units import KernelUnit, access_of, assign_kernels, kernel_unit, shape_unit

MAX_STACK_BYTES = 400 * 1024  # customops.md section 4.11
DEFAULT_STACK_BYTES = 8192
RESERVED_NAME = "builtin"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")
_STACK = re.compile(r"-DSTACK_SIZE=(\w+)\Z")

_DECISIVE = (
    "build",
    "compilation",
    "manifest",
    "package",
    "signature",
    "units",
)  # what they write may change

Progress = Callable[[str], None]


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
    """

    name: str
    compute: tuple[Path, ...]
    shape: tuple[Path, ...]
    directory: Path | None = None
    cflags: tuple[str, ...] = ()
    multicore: bool = False
    release: bool = False


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A built library: its file and facts, whether anything had to be done, and what the compiler warned about."""

    path: Path
    manifest: Manifest
    rebuilt: bool
    warnings: tuple[str, ...]
    seconds: float


def build(request: BuildRequest, on_progress: Progress | None = None) -> BuildResult:
    """Build a library, or find it built already.

    Args:
        request: what to build.
        on_progress: called with one line before each step.

    Raises:
        CustomOpBuildError: bad request, compiler errors, or operators that break a rule.
        MissingDependencyError: there is no C++ compiler.
    """
    start = time.monotonic()
    say = on_progress or _ignore
    stack_bytes = _check(request)
    compiler = find_compiler()
    toolchain = _prepare(compiler, say)
    key = _build_key(request, toolchain)
    directory = request.directory or home() / "lib" / f"{request.name}-{key[:16]}"
    path = Path(os.path.abspath(directory)) / f"lib{request.name}.so"
    existing = _up_to_date(path, key)
    if existing is not None:
        return BuildResult(path, existing, rebuilt=False, warnings=(), seconds=time.monotonic() - start)
    with tempfile.TemporaryDirectory(prefix="neuron-customop-") as scratch:
        job = _Job(request, toolchain, Path(scratch), stack_bytes, say)
        manifest, parts, warnings = job.run(key)
    write_package(path, manifest, parts)
    return BuildResult(path, manifest, rebuilt=True, warnings=warnings, seconds=time.monotonic() - start)


@dataclass(frozen=True, slots=True)
class _Job:
    request: BuildRequest
    toolchain: Toolchain
    scratch: Path
    stack_bytes: int
    say: Progress

    def run(self, key: str) -> tuple[Manifest, Parts, tuple[str, ...]]:
        """Compile everything and return what goes into the package."""
        request = self.request
        self.say(f"compiling {_listed(request.shape)}")
        sources = [Path(os.path.abspath(path)) for path in request.shape]
        shape, shape_warnings, shape_files = self._library(
            "shape", [shape_unit(path) for path in sources], {}
        )
        operators, _ = parse_description(describe(self.toolchain, shape, "the shape sources"))
        check_operators(operators)
        self.say(f"compiling {_listed(request.compute)}")
        units = assign_kernels([Path(os.path.abspath(path)) for path in request.compute], operators)
        owners = {operator.kernel: operator.qualified for operator in operators}
        kernel, warnings, files = self._library("kernel", [kernel_unit(unit) for unit in units], owners)
        _, kernels = parse_description(describe(self.toolchain, kernel, "the compute sources"))
        entries = _entries(operators, kernels, units)
        parts = Parts(shape.read_bytes(), kernel.read_bytes(), self.toolchain.worker.read_bytes())
        manifest = Manifest(
            name=request.name,
            abi=abi.VERSION,
            multicore=request.multicore,
            release=request.release,
            stack_bytes=self.stack_bytes,
            cflags=request.cflags,
            compiler=self.toolchain.compiler.version,
            machine=platform.machine(),
            build_key=key,
            parts_sha256=parts.sha256,
            operators=entries,
            sources=_source_entries({*shape_files, *files}),
        )
        return manifest, parts, (*shape_warnings, *warnings)

    def _library(
        self, kind: str, texts: Sequence[str], owners: dict[str, str]
    ) -> tuple[Path, tuple[str, ...], set[Path]]:
        request = self.request
        given = request.shape if kind == "shape" else request.compute
        stack = max(DEFAULT_STACK_BYTES, self.stack_bytes)
        flags = ["-O1" if kind == "shape" else "-O3", f"-Wframe-larger-than={stack}"]
        if request.release:
            flags.append("-DNEURONTOOLS_CHECKED=0")
        units = [
            Unit(self.scratch / f"{kind}_{index}.cpp", text, given[index]) for index, text in enumerate(texts)
        ]
        compiled = compile_units(self.toolchain, units, (*flags, *request.cflags), owners)
        library = self.scratch / f"{kind}.so"
        link(self.toolchain, [unit.object for unit in units], library, given)
        return library, compiled.warnings, set(compiled.sources)


def _ignore(_line: str) -> None:
    return


def _prepare(compiler: Compiler, say: Progress) -> Toolchain:
    if compiler.slow_start:
        say("using the compiler of the package ziglang: its very first compile takes about a minute")
    return prepare(compiler, say)


def _check(request: BuildRequest) -> int:
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
    return _stack_bytes(request.cflags)


def _stack_bytes(cflags: Sequence[str]) -> int:
    size = 0
    for flag in cflags:
        found = _STACK.match(flag)
        if found is None:
            continue
        try:
            size = int(found[1], 0)
        except ValueError:
            raise CustomOpBuildError(f"{flag} is not a number of bytes", "use -DSTACK_SIZE=<bytes>") from None
        if size > MAX_STACK_BYTES:
            raise CustomOpBuildError(
                f"a stack of {size} bytes; the limit is {MAX_STACK_BYTES}", "use less stack"
            )
    return size


def _build_key(request: BuildRequest, toolchain: Toolchain) -> str:
    facts = (
        request.name,
        toolchain.key,
        [_sha256(HERE / f"{module}.py") for module in _DECISIVE],
        request.multicore,
        request.release,
        request.cflags,
        tuple(os.path.abspath(path) for path in request.compute),
        tuple(os.path.abspath(path) for path in request.shape),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _up_to_date(path: Path, key: str) -> Manifest | None:
    if not path.exists():
        return None
    try:
        manifest = read_package(path).manifest
        if manifest.build_key == key and all(
            _sha256(Path(entry.path)) == entry.sha256 for entry in manifest.sources
        ):
            return manifest
    except (CustomOpLibraryError, OSError):
        return None
    return None


def _entries(
    operators: Sequence[DescribedOperator], kernels: Sequence[DescribedKernel], units: Sequence[KernelUnit]
) -> tuple[OperatorEntry, ...]:
    positions = {kernel.name: index for index, kernel in enumerate(kernels)}
    sources = {kernel: unit.source for unit in units for kernel in unit.kernels}
    entries = []
    for operator in operators:
        index = positions[operator.kernel]
        check_kernel(operator, kernels[index])
        entries.append(
            OperatorEntry(
                operator.library,
                operator.name,
                operator.kernel,
                index,
                kernels[index].function.parameters,
                access_of(sources[operator.kernel], operator.kernel),
            )
        )
    return tuple(entries)


def _source_entries(paths: set[Path]) -> tuple[SourceEntry, ...]:
    return tuple(SourceEntry(str(path), _sha256(path)) for path in sorted(paths))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def with_stack(request: BuildRequest, stack_bytes: int) -> BuildRequest:
    """Return the request with a declared stack size."""
    return replace(request, cflags=(*request.cflags, f"-DSTACK_SIZE={stack_bytes}"))
