"""Build the parts of a library from sources: shape library, operator table, kernel library."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop.building.compilation import (
    Compiled,
    KernelUnit,
    Unit,
    access_of,
    assign_kernels,
    compile_units,
    defines,
    describe,
    guess_kernel_units,
    kernel_unit,
    link,
    shape_unit,
)
from neurontools.customop.building.request import absolute
from neurontools.customop.building.toolchain import Toolchain, home, plan, prepare, remove_old, unwritable
from neurontools.customop.errors import CustomOpBuildError
from neurontools.customop.package import Manifest, OperatorEntry, Parts, SourceEntry
from neurontools.customop.signature import (
    ABI_VERSION,
    DescribedKernel,
    DescribedOperator,
    check_kernel,
    check_operators,
    integer_warnings,
    missing_kernel,
    parse_description,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.building.request import BuildRequest
    from neurontools.customop.building.toolchain import Compiler

DEFAULT_STACK_BYTES = 8192
_UNUSED_S = 30 * 86400.0
_JOB = ".job-"


@dataclass(frozen=True, slots=True)
class BuiltLibrary:
    """Manifest and parts of a library, and warnings of the compiler."""

    manifest: Manifest
    parts: Parts
    warnings: tuple[str, ...]


def build_library(
    request: BuildRequest, compiler: Compiler, key: str, path: Path, on_progress: Callable[[str], None]
) -> BuiltLibrary:
    """Compile the changes since the last build of the same library and link it.

    Args:
        request: the build request.
        compiler: the compiler.
        key: the build key, for the manifest.
        path: path of the library, whose lock is held; each path has a directory for its object files.
        on_progress: called with one line before each step.

    Raises:
        CustomOpBuildError: compiler errors, or invalid operators.
    """
    if compiler.is_zig:
        on_progress("using the compiler of the package ziglang: its first compile takes about a minute")
    toolchain = plan(compiler, sanitize=request.sanitize)
    try:
        work = _work_directory(path)
        with (
            tempfile.TemporaryDirectory(prefix=_JOB, dir=work) as scratch,
            ThreadPoolExecutor(max_workers=2) as beside,
        ):
            # Compile the user's sources meanwhile: only linking needs the runtime.
            ready = beside.submit(prepare, compiler, on_progress, sanitize=request.sanitize)
            return _Job(request, toolchain, ready, work, Path(scratch), on_progress).run(key, beside)
    except OSError as error:
        raise unwritable(error.filename or home(), error) from error


@dataclass(frozen=True, slots=True)
class _Job:
    request: BuildRequest
    toolchain: Toolchain
    ready: Future[Toolchain]
    work: Path
    scratch: Path
    on_progress: Callable[[str], None]

    def run(self, key: str, beside: Executor) -> BuiltLibrary:
        request = self.request
        ahead = beside.submit(self._build_kernels_early)
        sources = [Path(path) for path in absolute(request.shape)]
        shape_path, shape = self._library("shape", [shape_unit(path) for path in sources], {})
        operators, _ = parse_description(describe(self.toolchain, shape_path, "the shape sources"))
        check_operators(operators)
        units = assign_kernels(
            [Path(path) for path in absolute(request.compute)], (operator.kernel for operator in operators)
        )
        owners = {operator.kernel: operator.qualified for operator in operators}
        early = ahead.result()
        for line in early.messages:
            self.on_progress(line)
        kernel_path, kernel = self._library("kernel", [kernel_unit(unit) for unit in units], owners, early)
        _, kernels = parse_description(describe(self.toolchain, kernel_path, "the compute sources"))
        parts = Parts(shape_path.read_bytes(), kernel_path.read_bytes(), self.toolchain.worker.read_bytes())
        manifest = Manifest(
            name=request.name,
            abi=ABI_VERSION,
            multicore=request.multicore,
            release=request.release,
            sanitize=request.sanitize,
            stack_bytes=request.stack_bytes,
            cflags=request.cflags,
            compiler=self.toolchain.compiler.version,
            machine=platform.machine(),
            build_key=key,
            parts_sha256=parts.sha256,
            compute=absolute(request.compute),
            shape=absolute(request.shape),
            operators=_entries(operators, kernels, units, request.compute),
            sources=tuple(SourceEntry(*item) for item in sorted({**shape.sources, **kernel.sources}.items())),
        )
        return BuiltLibrary(
            manifest, parts, (*shape.warnings, *kernel.warnings, *integer_warnings(operators))
        )

    def _build_kernels_early(self) -> _EarlyKernels:
        """Compile and link the kernels in parallel with the shape sources that name them: as in the last build, or by a guess.

        Wrong guesses are compiled again: objects are found by the text of their units.
        """
        messages: list[str] = []
        sources = [Path(path) for path in absolute(self.request.compute)]
        try:
            texts = guess_kernel_units(self.work, sources, self.request.shape)
            units, compiled = self._compile("kernel", texts, {}, messages.append)
            self._link("kernel", units)
        except (CustomOpBuildError, OSError):
            return _EarlyKernels((), (), None)  # the regular build reports the error
        return _EarlyKernels(tuple(messages), tuple(texts), compiled)

    def _compile(
        self, kind: str, texts: Sequence[str], owners: dict[str, str], on_progress: Callable[[str], None]
    ) -> tuple[Sequence[Unit], Compiled]:
        given = self.request.shape if kind == "shape" else self.request.compute
        units = [
            Unit(self.work / f"{kind}_{index}.cpp", text, given[index]) for index, text in enumerate(texts)
        ]
        flags = (*self._flags(kind), *self.request.cflags)
        return units, compile_units(self.toolchain, units, flags, owners, self.scratch, on_progress)

    def _library(
        self, kind: str, texts: Sequence[str], owners: dict[str, str], early: _EarlyKernels | None = None
    ) -> tuple[Path, Compiled]:
        units, compiled = self._compile(kind, texts, owners, self.on_progress)
        built = early is not None and early.texts == tuple(texts) and early.compiled == compiled
        library = self._library_path(kind) if built else self._link(kind, units)
        return library, compiled

    def _link(self, kind: str, units: Sequence[Unit]) -> Path:
        given = self.request.shape if kind == "shape" else self.request.compute
        library = self._library_path(kind)
        self.ready.result()
        link(self.toolchain, [unit.object for unit in units], library, given)
        return library

    def _library_path(self, kind: str) -> Path:
        return self.scratch / f"{kind}.so"

    def _flags(self, kind: str) -> list[str]:
        request = self.request
        if request.sanitize:
            flags = ["-O1"]  # sanitizers enlarge stack frames, so their size is not checked
        else:
            stack = max(DEFAULT_STACK_BYTES, request.stack_bytes)
            flags = ["-O1" if kind == "shape" else "-O3", f"-Wframe-larger-than={stack}"]
        if request.release:
            flags.append("-DNEURONTOOLS_CHECKED=0")
        return flags


@dataclass(frozen=True, slots=True)
class _EarlyKernels:
    """Kernels built before the shape sources named them: progress messages, unit texts, inputs."""

    messages: tuple[str, ...]
    texts: tuple[str, ...]
    compiled: Compiled | None


def _work_directory(path: Path) -> Path:
    # The same path at every build, for compiler caches and for reuse of unchanged object files.
    directories = home() / "work"
    work = directories / hashlib.sha256(os.fsencode(path)).hexdigest()[:24]
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.utime(work)
    for abandoned in work.glob(f"{_JOB}*"):  # of a killed build: this process holds the lock now
        shutil.rmtree(abandoned, ignore_errors=True)
    remove_old(directories.iterdir(), _UNUSED_S)
    return work


def _entries(
    operators: Sequence[DescribedOperator],
    kernels: Sequence[DescribedKernel],
    units: Sequence[KernelUnit],
    given: Sequence[Path],
) -> tuple[OperatorEntry, ...]:
    positions = {kernel.name: index for index, kernel in enumerate(kernels)}
    sources = {kernel: unit.source for unit in units for kernel in unit.kernels}
    entries = []
    for operator in operators:
        index = positions[operator.kernel]
        source = sources[operator.kernel]
        if kernels[index].function.result != "tensor" and not defines(source, operator.kernel):
            # A header declares a function of that name: read, exp, ...
            raise missing_kernel(operator.qualified, operator.kernel, given, foreign=True)
        check_kernel(operator, kernels[index])
        entries.append(
            OperatorEntry(
                operator.library,
                operator.name,
                operator.kernel,
                index,
                kernels[index].function.parameters,
                access_of(source, operator.kernel),
            )
        )
    return tuple(entries)
