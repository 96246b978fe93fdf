"""The C++ compiler, and the runtime and worker that are built with it once and shared by all libraries."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.customop.errors import CustomOpBuildError
from neurontools.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

HERE = Path(__file__).resolve().parents[1]  # compilers print resolved paths
INCLUDE = HERE / "include"
SOURCE = HERE / "src"
# Compiled together: that takes little longer than one of them, because they share headers.
RUNTIME_SOURCES = ("runtime", "storage", "checks", "messages", "counting", "tcm", "traps")
WORKER_SOURCES = ("worker", "guard", "mailbox", "library", "slots", "faults", "sanitized")
BASE_FLAGS = ("-std=c++14", "-fPIC", "-fvisibility=hidden", "-g1")
SANITIZE_FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
_ABANDONED_S = 3600.0
_FILES, _DIGESTS = ("runtime.o", "worker"), "sha256"
_INSTALL = "install g++ (apt-get install g++, dnf install gcc-c++) or pip install ziglang, or set CXX"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler with its runtime and worker.

    Args:
        compiler: the compiler.
        worker: path of the worker executable.
        runtime: path of the runtime's object file.
        key: digest of everything in a library except the user's sources.
        sanitize_flags: flags of the sanitizers for compiler and linker; empty without them.
    """

    compiler: Compiler
    worker: Path
    runtime: Path
    key: str
    sanitize_flags: tuple[str, ...] = ()


def home() -> Path:
    """Return our cache directory."""
    return Path(paths.cache_home()) / "customop"


def user_flags(compiler: Compiler) -> tuple[str, ...]:
    """Return the compiler flags for all user sources: standard, warnings, our headers."""
    # binutils misreads the file names in the version 5 line tables of clang.
    clang = ("-Wno-c++11-narrowing", "-fno-color-diagnostics", "-gdwarf-4") if compiler.is_clang else ()
    zig = ("-UNDEBUG",) if compiler.is_zig else ()  # zig drops assert() in optimized code
    return (*BASE_FLAGS, "-Wno-narrowing", *clang, *zig, "-isystem", str(INCLUDE))


def toolchain_key(compiler: Compiler, *, sanitize: bool) -> str:
    """Return a digest of everything in a library except the user's sources."""
    kind = "sanitize" if sanitize else "plain"
    return hashlib.sha256(os.fsencode(f"{compiler.identity}\n{sources_digest()}\n{kind}")).hexdigest()[:20]


def prepare(
    compiler: Compiler, on_progress: Callable[[str], None] | None = None, *, sanitize: bool = False
) -> Toolchain:
    """Return the toolchain of a compiler, built now if necessary. Several processes may do so at once.

    `on_progress` is called with one line before a build; `sanitize` adds the address and undefined-behaviour sanitizers.

    Raises:
        CustomOpBuildError: our sources do not compile with it, or the cache directory cannot be written.
    """
    toolchain = plan(compiler, sanitize=sanitize)
    directory = toolchain.worker.parent
    if not _is_intact(toolchain):
        if on_progress:
            on_progress("compiling the runtime of custom operators, once for this compiler")
        _build(toolchain, directory)
    return toolchain


def plan(compiler: Compiler, *, sanitize: bool = False) -> Toolchain:
    """Return the toolchain of a compiler without building it."""
    key = toolchain_key(compiler, sanitize=sanitize)
    directory = home() / f"tools-{key}"
    flags = SANITIZE_FLAGS if sanitize else ()
    return Toolchain(compiler, directory / "worker", directory / "runtime.o", key, flags)


def sources_digest() -> str:
    """Return a digest of our headers and sources."""
    digest = hashlib.sha256()
    for root in (INCLUDE, SOURCE):
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_intact(toolchain: Toolchain) -> bool:
    """Return whether the files are those that were compiled: a power failure may truncate them."""
    try:
        digest = (toolchain.worker.parent / _DIGESTS).read_text(encoding="ascii")
        return digest == _digest_of(toolchain.worker.parent)
    except (OSError, ValueError):
        return False


def _digest_of(directory: Path) -> str:
    return "\n".join(hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in _FILES)


def _build(toolchain: Toolchain, directory: Path) -> None:
    import tempfile

    try:
        paths.make_private(str(directory.parent))
        remove_old(directory.parent.glob(".building-*"), _ABANDONED_S)
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
    except OSError as error:
        raise unwritable(directory.parent, error) from error
    try:
        _compile_all(toolchain.compiler, scratch, toolchain.sanitize_flags)
        (scratch / _DIGESTS).write_text(_digest_of(scratch), encoding="ascii")
        if directory.is_dir() and not _is_intact(toolchain):
            shutil.rmtree(directory, ignore_errors=True)
        os.rename(scratch, directory)
    except OSError:
        # Another process was faster; its result is equal.
        if not _is_intact(toolchain):
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _compile_all(compiler: Compiler, scratch: Path, flags: tuple[str, ...]) -> None:
    traps = ("-DNEURONTOOLS_NO_WRAP",) if compiler.is_zig else ()
    common = (*compiler.command, *BASE_FLAGS, *flags, *traps, "-I", str(INCLUDE))
    runtime, worker = (
        _write_unit(scratch, "runtime", RUNTIME_SOURCES),
        _write_unit(scratch, "worker", WORKER_SOURCES),
    )
    commands = [
        (*common, "-O1", "-c", runtime, "-o", "runtime.o"),
        (*common, "-O1", worker, "-o", "worker", "-ldl", "-pthread"),
    ]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, commands, [scratch] * 2, _FILES))


def _write_unit(scratch: Path, name: str, sources: tuple[str, ...]) -> str:
    unit = scratch / f"{name}.cpp"
    unit.write_bytes(os.fsencode("".join(f'#include "{SOURCE / source}.cpp"\n' for source in sources)))
    return str(unit)


def _run(command: tuple[str, ...], directory: Path, made: str) -> None:
    result = run_program(command, cwd=directory)
    if result.returncode != 0 or not (directory / made).exists():
        raise CustomOpBuildError(
            f"{command[0]} cannot compile the custom operator runtime: {first_error(result)}",
            "try another compiler with CXX",
        )


def first_error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the first error that a compiler printed, or what else is known of its failure."""
    if done.returncode == 0:
        return "it ended without an error and wrote no file"
    lines = done.stderr.splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")


def run_program(
    command: Sequence[str | Path],
    *,
    pass_fds: Sequence[int] = (),
    timeout_s: float | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program without input and return its exit code and output.

    Raises:
        OSError, subprocess.TimeoutExpired: it cannot be started, or takes too long.
    """
    return subprocess.run(
        command,
        pass_fds=pass_fds,
        timeout=timeout_s,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding=sys.getfilesystemencoding(),
        errors="surrogateescape",
        check=False,
    )


def remove_old(directories: Iterable[Path], age_s: float) -> None:
    """Remove directories that have not changed for some seconds."""
    limit = time.time() - age_s
    for directory in directories:
        with suppress(FileNotFoundError):
            if directory.stat().st_mtime < limit:
                shutil.rmtree(directory, ignore_errors=True)


def unwritable(path: object, error: OSError) -> CustomOpBuildError:
    """Return the error for a cache directory that cannot be written."""
    return CustomOpBuildError(
        f"cannot write {path}: {error.strerror}", "set XDG_CACHE_HOME to another directory"
    )


@dataclass(frozen=True, slots=True)
class Compiler:
    """A working C++ compiler.

    Args:
        command: its command line.
        version: first line of its --version output.
        is_clang: whether it accepts clang's options (clang++, zig).
        is_zig: whether it is zig: its first compile takes about a minute, and its linker has no --wrap.
        launcher: ccache, if it is installed.
    """

    command: tuple[str, ...]
    version: str
    is_clang: bool
    is_zig: bool = False
    launcher: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Command and version, which determine its object files."""
        return " ".join(self.command) + "\n" + self.version


def find_compiler() -> Compiler:
    """Return the compiler: $CXX, g++, clang++, or that of the PyPI package `ziglang`.

    Raises:
        MissingDependencyError: there is none, or $CXX does not work.
    """
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        compiler = _probe(tuple(shlex.split(chosen)))
        if compiler is None:
            raise MissingDependencyError(f"the compiler in CXX does not work: {chosen}", _INSTALL)
        return compiler
    for name in ("g++", "clang++"):
        compiler = _probe((name,))
        if compiler is not None:
            return compiler
    if find_spec("ziglang") is not None:
        compiler = _probe((sys.executable, "-m", "ziglang", "c++"))
        if compiler is not None:
            return compiler
    raise MissingDependencyError("no C++ compiler found, custom operators need one", _INSTALL)


def _probe(command: tuple[str, ...]) -> Compiler | None:
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        answer = run_program([program, *command[1:], "--version"], timeout_s=60.0)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0 or not answer.stdout.strip():
        return None
    is_zig = "ziglang" in command
    version = answer.stdout.splitlines()[0].strip()
    launcher = () if is_zig else _launcher(program)
    return Compiler((program, *command[1:]), version, is_zig or "clang" in answer.stdout, is_zig, launcher)


def _launcher(program: str) -> tuple[str, ...]:
    # Some distributions install links to ccache under the names of compilers: do not run it twice.
    ccache = shutil.which("ccache")
    if ccache is None or os.path.basename(os.path.realpath(program)) == "ccache":
        return ()
    return (ccache,)


@contextmanager
def build_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file that is about to be written. It lies in our cache directory, not beside the file.

    Args:
        path: the absolute path of the file.
        on_wait: called once when another process or thread holds the lock.

    Raises:
        CustomOpBuildError: the cache directory cannot be written.
    """
    from neurontools.base.locks import file_lock

    directory = home() / "locks"
    lock = file_lock(directory / hashlib.sha256(os.fsencode(path)).hexdigest()[:24], on_wait=on_wait)
    with ExitStack() as stack:
        try:
            paths.make_private(str(directory))
            stack.enter_context(lock)
        except OSError as error:
            raise unwritable(directory, error) from error
        yield
