"""Run the compiler: units to objects, objects to a library, a library to its description, errors to diagnostics."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.base.text import printable_lines
from neurontools.customop.building.freshness import (
    ObjectRecord,
    file_sha256,
    find_object,
    store_object,
    unit_key,
)
from neurontools.customop.building.toolchain import INCLUDE, Toolchain, run_program, user_flags
from neurontools.customop.errors import CompilerOutputError, CustomOpBuildError
from neurontools.customop.package import Access
from neurontools.customop.signature import missing_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_TRAPS = "-Wl,--wrap=__cxa_throw,--wrap=abort,--wrap=exit,--wrap=_exit,--wrap=__assert_fail"
_UNDECLARED = re.compile(
    r"error: (?:.* was not declared|.* has not been declared|use of undeclared identifier|no member named)"
)
_OVERLOADED = re.compile(r"overloaded|couldn't infer template argument")
_DESCRIBE_TIMEOUT_S = 60.0
_ATTEMPTS = 3
_CLOCK_STEP_NS = 10_000_000  # time stamps of file systems may be this much behind
_DIAGNOSTIC = re.compile(
    r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?P<kind>(?:fatal )?error|warning|note): (?P<text>.*)"
)
_REQUIRED = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+):\s+required from here")
_CONTEXT = re.compile(r"\S+: (?:In |At )|In file included from|\s+from |\S+:\d+:\d+:\s+required (?:from|by)")
_SYSTEM = ("/usr/include", "/usr/lib", "/usr/local/include", "/usr/local/lib")
_LINKER = re.compile(r"undefined reference to|multiple definition of|undefined symbol|duplicate symbol")
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_QUOTED = re.compile(r'"([A-Za-z_][\w:]*)"')
_CALL = re.compile(r"\b(\w+)\s*(?:<[^<>;()]*>)?\s*\(")
_ELEMENT = re.compile(r"[.>]\s*(?:template\s+)?accessor\s*<|\bdata_ptr\b")
_STREAM = re.compile(r"\b(?:read|write)_stream_accessor\b")
EXPORT = re.compile(r'KernelDefinition neurontools_kernel_\d+\("([^"]*)"')
_TCM = re.compile(r"\btcm_accessor\b")


@dataclass(frozen=True, slots=True)
class Unit:
    """A generated translation unit.

    Args:
        path: its file.
        text: its contents.
        source: the user's file that it includes, with the path that the user gave.
    """

    path: Path
    text: str
    source: Path

    @property
    def object(self) -> Path:
        """The object file."""
        return self.path.with_suffix(".o")


@dataclass(frozen=True, slots=True)
class Compiled:
    """Results beside the objects: warnings about the user's files, and digests of the files that were read."""

    warnings: tuple[str, ...]
    sources: dict[str, str]


def compile_units(
    toolchain: Toolchain,
    units: Sequence[Unit],
    flags: Sequence[str],
    owners: Mapping[str, str],
    scratch: Path,
    on_progress: Callable[[str], None],
) -> Compiled:
    """Compile the changed units in parallel.

    Args:
        toolchain: the compiler.
        units: the units.
        flags: optimisation, warnings and the user's flags.
        owners: kernel name -> operator that uses it, for error messages.
        scratch: directory for temporary files.
        on_progress: called with one line before compiling.

    Raises:
        CustomOpBuildError: the compiler found errors; the message holds its lines about the user's files.
    """
    tasks = [_Task(toolchain, unit, tuple(flags), scratch) for unit in units]
    known = [find_object(task.unit.object, task.key) for task in tasks]
    waiting = [task for task, record in zip(tasks, known, strict=True) if record is None]
    if waiting:
        on_progress(f"compiling {', '.join(str(task.unit.source) for task in waiting)}")
        with ThreadPoolExecutor(max_workers=min(len(waiting), os.cpu_count() or 1)) as pool:
            made = iter(list(pool.map(lambda task: task.run(owners), waiting)))
        known = [record or next(made) for record in known]
    records = [record for record in known if record is not None]
    return Compiled(
        tuple(line for record in records for line in record.warnings),
        {path: digest for record in records for path, digest in record.sources.items()},
    )


@dataclass(frozen=True, slots=True)
class _Task:
    toolchain: Toolchain
    unit: Unit
    flags: tuple[str, ...]
    scratch: Path

    @property
    def command(self) -> tuple[str, ...]:
        compiler = self.toolchain.compiler
        sanitize = self.toolchain.sanitize_flags
        return (*compiler.command, *user_flags(compiler), *sanitize, *self.flags, "-c", str(self.unit.path))

    @property
    def key(self) -> str:
        return unit_key(self.command, self.unit.text, self.toolchain.key)

    def run(self, owners: Mapping[str, str]) -> ObjectRecord:
        """Compile until no file changed meanwhile: the record must describe exactly what was compiled."""
        self.unit.path.write_bytes(os.fsencode(self.unit.text))
        before = _digests([os.path.abspath(self.unit.source)])
        for _ in range(_ATTEMPTS):
            start_ns = time.time_ns() - _CLOCK_STEP_NS
            diagnostics = self._compile(owners)
            after = _digests(_dependencies(self._fresh("d"), self.unit.path))
            if all(
                before.get(path) == digest or os.stat(path).st_mtime_ns < start_ns
                for path, digest in after.items()
            ):
                fresh = self._fresh("o")
                record = ObjectRecord(self.key, file_sha256(fresh), after, diagnostics.warnings)
                store_object(fresh, self.unit.object, record)
                return record
            before = after
        raise CustomOpBuildError(
            f"{self.unit.source}, or a file that it includes, changed during the build",
            "build again when no other program writes to it",
        )

    def _compile(self, owners: Mapping[str, str]) -> Diagnostics:
        words = (*self.command, "-MMD", "-MF", str(self._fresh("d")), "-o", str(self._fresh("o")))
        launcher = self.toolchain.compiler.launcher
        code, output = _run((*launcher, *words))
        if code != 0 and launcher and "ccache: error:" in output:
            code, output = _run(words)  # build without a broken ccache
        names = {os.path.abspath(self.unit.source): str(self.unit.source)}
        diagnostics = user_diagnostics(output, names, (str(INCLUDE), str(self.unit.path.parent)))
        if code != 0:
            raise _failure(self.unit, output, diagnostics, owners)
        if not self._fresh("o").exists():
            raise CustomOpBuildError(
                f"{' '.join(self.toolchain.compiler.command)} exited with 0 but wrote no object file",
                "set CXX to a C++ compiler",
            )
        return diagnostics

    def _fresh(self, suffix: str) -> Path:
        return self.scratch / f"{self.unit.path.stem}.{suffix}"


def link(toolchain: Toolchain, objects: Sequence[Path], library: Path, sources: Sequence[Path]) -> None:
    """Link objects and the runtime into a shared library.

    Raises:
        CustomOpBuildError: a symbol is missing or defined twice.
    """
    inputs = [str(path) for path in (*objects, toolchain.runtime)]
    traps = () if toolchain.compiler.is_zig else (_TRAPS,)
    command = [*toolchain.compiler.command, "-shared", *traps, *inputs, "-o", str(library)]
    if not (
        toolchain.sanitize_flags and toolchain.compiler.is_clang
    ):  # the executable has clang's sanitizers
        command.append("-Wl,-z,defs")
    command += toolchain.sanitize_flags
    code, output = _run(command)
    if code != 0:
        names = {os.path.abspath(source): str(source) for source in sources}
        lines = user_diagnostics(output, names, (str(INCLUDE), str(library.parent))).errors
        details = "\n".join(lines or output.splitlines()[-5:])
        raise CompilerOutputError(printable_lines(f"cannot link {', '.join(map(str, sources))}\n{details}"))


def describe(toolchain: Toolchain, library: Path, what: str) -> str:
    """Return the description of a library, by loading it into a separate process.

    Raises:
        CustomOpBuildError: it cannot be loaded, or its static initialization crashes.
    """
    with library.open("rb") as file:
        try:
            result = run_program(
                [toolchain.worker, "describe", str(file.fileno())],
                pass_fds=(file.fileno(),),
                timeout_s=_DESCRIBE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise CustomOpBuildError(
                f"loading {what} does not finish", "check their static objects"
            ) from None
    if result.returncode != 0:
        reason = result.stderr.strip() or f"exit code {result.returncode}"
        raise CustomOpBuildError(f"loading {what} fails: {reason}", "check their static objects")
    return result.stdout


def _run(command: Sequence[str]) -> tuple[int, str]:
    environ = {**os.environ, "LC_ALL": "C"}
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding=sys.getfilesystemencoding(),  # it names files
        errors="surrogateescape",
        env=environ,
        check=False,
    )
    return result.returncode, result.stdout


def _failure(
    unit: Unit, output: str, diagnostics: Diagnostics, owners: Mapping[str, str]
) -> CustomOpBuildError:
    kernel = "" if diagnostics.errors else _exported(output, unit)
    if kernel in owners and not defines(unit.source, kernel):
        undeclared = _UNDECLARED.search(output) is not None
        return missing_kernel(owners[kernel], kernel, [unit.source], foreign=not undeclared)
    if kernel and _OVERLOADED.search(output):
        return CustomOpBuildError(
            f"operator {owners.get(kernel, kernel)}: kernel function {kernel} in {unit.source} is overloaded",
            "give kernels different names",
        )
    lines = diagnostics.errors or tuple(output.splitlines()[:20])
    return CompilerOutputError(printable_lines("\n".join((f"cannot compile {unit.source}", *lines))))


def _exported(output: str, unit: Unit) -> str:
    """Return the kernel whose export has an error: the compiler names its line in the generated unit."""
    found = re.search(rf"^{re.escape(str(unit.path))}:(\d+):(?:\d+:)? error:", output, re.MULTILINE)
    lines = unit.text.splitlines()
    export = EXPORT.search(lines[int(found[1]) - 1]) if found and int(found[1]) <= len(lines) else None
    return export[1] if export else ""


def _dependencies(listing: Path, unit: Path) -> list[str]:
    text = os.fsdecode(listing.read_bytes())
    listed = text.replace("\\\n", " ").partition(": ")[2]
    names = [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", listed.strip())]
    paths = [os.path.abspath(name) for name in names if name]
    return [path for path in paths if path != os.path.abspath(unit)]


def _digests(paths: Sequence[str]) -> dict[str, str]:
    return {path: file_sha256(Path(path)) for path in paths}


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Compiler output about the user's files.

    Args:
        errors: lines of errors, with source lines and carets.
        warnings: lines of warnings.
    """

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def user_diagnostics(output: str, names: Mapping[str, str], internal: Iterable[str]) -> Diagnostics:
    """Filter compiler output.

    Args:
        output: the compiler's output.
        names: absolute path of a user's file -> the path that the user gave.
        internal: directories of our headers and of generated files.

    An error inside such a header is reported at the user's line that led to it, if the compiler names it.
    """
    prefixes = tuple(os.path.join(directory, "") for directory in (*internal, *_SYSTEM))
    errors: list[str] = []
    warnings: list[str] = []
    target: list[str] | None = None
    caller = ""
    source_follows = False  # clang prints source lines without an indent
    for line in output.splitlines():
        required = _REQUIRED.match(line)
        found = _DIAGNOSTIC.match(line)
        if required and not required["file"].startswith(prefixes):
            caller = (
                f"{names.get(required['file'], required['file'])}:{required['line']}:{required['column']}"
            )
        elif found:
            if found["kind"] != "note":
                target = warnings if found["kind"] == "warning" else errors
            place, foreign = _place(found, names, prefixes, caller)
            reported = foreign and (
                found["kind"] != "error" or any(line.startswith(place + ":") for line in errors)
            )
            if target is not None and place and not reported:
                target.append(f"{place}: {found['kind']}: {found['text']}")
            source_follows = not foreign
            target = None if foreign else target
            caller = "" if found["kind"] != "note" else caller
        elif _LINKER.search(line):
            errors.append(
                line.rpartition(": ")[0].rpartition(": ")[2] + line[line.rfind(": ") :]
                if ": " in line
                else line
            )
        elif _CONTEXT.match(line):
            continue
        elif target is not None and (source_follows or line.startswith((" ", "\t"))):
            target.append(line)
            source_follows = False
    return Diagnostics(tuple(errors), tuple(warnings))


def _place(
    found: re.Match[str], names: Mapping[str, str], prefixes: tuple[str, ...], caller: str
) -> tuple[str, bool]:
    if not found["file"].startswith(prefixes):
        column = f":{found['column']}" if found["column"] else ""
        return f"{names.get(found['file'], found['file'])}:{found['line']}{column}", False
    return caller, True


@dataclass(frozen=True, slots=True)
class KernelUnit:
    """A compute source with the names of the kernels that it defines."""

    source: Path
    kernels: tuple[str, ...]


def shape_unit(source: Path) -> str:
    """Return the text of a unit for a shape source."""
    return f"{_include(source)}\n"


def kernel_unit(unit: KernelUnit) -> str:
    """Return the text of a unit for a compute source: the compiler deduces the signatures of exported kernels."""
    exports = [
        f'static const ::neurontools::KernelDefinition neurontools_kernel_{index}("{name}", &{name});'
        for index, name in enumerate(unit.kernels)
    ]
    return "\n".join((_include(unit.source), '#include "neurontools/registry.hpp"', *exports, ""))


def assign_kernels(sources: Sequence[Path], kernels: Iterable[str]) -> tuple[KernelUnit, ...]:
    """Find the compute source that defines each kernel.

    A kernel without a visible definition is assigned to the first source: a macro may define it, else the compiler fails.
    """
    texts = {source: _code(source) for source in sources}
    wanted = dict.fromkeys(kernels)
    homes: dict[str, Path] = {}
    for kernel in wanted:
        homes[kernel] = next((source for source in sources if _defines(texts[source], kernel)), sources[0])
    return tuple(
        KernelUnit(source, tuple(kernel for kernel in wanted if homes[kernel] == source))
        for source in sources
    )


def defines(source: Path, kernel: str) -> bool:
    """Return whether a source visibly defines a kernel; a macro may define others."""
    return _defines(_code(source), kernel)


def guess_kernel_units(work: Path, sources: Sequence[Path], shapes: Sequence[Path]) -> list[str]:
    """Guess the texts of compute units before the shape sources are compiled.

    Args:
        work: directory of the last build's units, which are reused.
        sources: the compute sources.
        shapes: the shape sources; a quoted name that a compute source defines is taken for a kernel.
    """
    last = [work / f"kernel_{index}.cpp" for index in range(len(sources))]
    if all(path.is_file() for path in last):
        return [os.fsdecode(path.read_bytes()) for path in last]
    names = dict.fromkeys(name for path in shapes for name in _QUOTED.findall(os.fsdecode(path.read_bytes())))
    texts = {source: _code(source) for source in sources}
    found: dict[Path, list[str]] = {source: [] for source in sources}
    for name in names:
        home = next((source for source in sources if _defines(texts[source], name)), None)
        if home is not None:
            found[home].append(name)
    return [kernel_unit(KernelUnit(source, tuple(kernels))) for source, kernels in found.items()]


def access_of(source: Path, kernel: str) -> Access:
    """Derive the tensor accesses of a kernel from its source and that of the functions it calls."""
    body = "\n".join(_reachable(_code(source), kernel))
    for pattern, access in ((_ELEMENT, Access.ELEMENT), (_STREAM, Access.STREAM), (_TCM, Access.TCM)):
        if pattern.search(body):
            return access
    return Access.TENSOR


def _reachable(text: str, kernel: str) -> list[str]:
    bodies: list[str] = []
    seen = {kernel}
    waiting = [kernel]
    while waiting:
        body = _body(text, waiting.pop())
        bodies.append(body)
        called = {name for name in _CALL.findall(body) if name not in seen and _defines(text, name)}
        seen |= called
        waiting.extend(called)
    return bodies


def _include(source: Path) -> str:
    path = str(source).replace("\\", "\\\\").replace('"', '\\"')
    return f'#include "{path}"'


def _code(source: Path) -> str:
    text = os.fsdecode(source.read_bytes())
    return _COMMENT.sub(lambda match: " " * len(match[0]), text)


def _definition(kernel: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(kernel.rpartition('::')[2])}\s*\([^;{{}}]*\)\s*(?:noexcept\s*)?\{{")


def _defines(text: str, kernel: str) -> bool:
    return _definition(kernel).search(text) is not None


def _body(text: str, kernel: str) -> str:
    found = _definition(kernel).search(text)
    if found is None:
        return text
    depth = 0
    for index in range(found.end() - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[found.end() : index]
    return text[found.end() :]
