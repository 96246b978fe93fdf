"""What every library needs and no library differs in: runtime objects and the worker, built once per compiler."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.customop.errors import CustomOpBuildError
from neurontools.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HERE = Path(__file__).parents[1]
INCLUDE = HERE / "include"
SOURCE = HERE / "src"
# Each is compiled at once: together the sources take little longer than one of them, for they share their headers.
RUNTIME_SOURCES = ("runtime", "storage", "checks", "messages", "counting", "tcm", "traps")
WORKER_SOURCES = ("worker", "mailbox", "library", "slots", "faults", "sanitized")
BASE_FLAGS = ("-std=c++14", "-fPIC", "-fvisibility=hidden", "-g1")
SANITIZE_FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
_ABANDONED_S = 3600.0
_INSTALL = "install g++ (apt-get install g++, dnf install gcc-c++) or pip install ziglang, or set CXX"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler with what was built by it.

    Args:
        compiler: the compiler.
        worker: path of the worker executable.
        runtime: path of the runtime's object file.
        key: changes when anything that goes into a library beside the user's sources does.
        sanitize_flags: what compiling and linking take for the sanitizers; empty without them.
    """

    compiler: Compiler
    worker: Path
    runtime: Path
    key: str
    sanitize_flags: tuple[str, ...] = ()


def home() -> Path:
    """Return the directory of what we build."""
    return Path(paths.cache_home()) / "customop"


def user_flags(compiler: Compiler) -> tuple[str, ...]:
    """Return the flags that every source of a user is compiled with: standard, warnings, our headers."""
    # binutils takes the wrong file of version 5 line tables that clang writes.
    clang = ("-Wno-c++11-narrowing", "-fno-color-diagnostics", "-gdwarf-4") if compiler.is_clang else ()
    zig = ("-UNDEBUG",) if compiler.is_zig else ()  # it leaves assert() out where it optimises
    return (*BASE_FLAGS, "-Wno-narrowing", *clang, *zig, "-isystem", str(INCLUDE))


def toolchain_key(compiler: Compiler, *, sanitize: bool) -> str:
    """Return a digest of what goes into a library beside the user's sources."""
    kind = "sanitize" if sanitize else "plain"
    return hashlib.sha256(f"{compiler.identity}\n{sources_digest()}\n{kind}".encode()).hexdigest()[:20]


def prepare(
    compiler: Compiler, on_progress: Callable[[str], None] | None = None, *, sanitize: bool = False
) -> Toolchain:
    """Return the toolchain of a compiler, built now if it never was; any number of processes may do so at once.

    Args:
        compiler: the compiler.
        on_progress: called with one line before something is built.
        sanitize: the one with address and undefined-behaviour sanitizers.

    Raises:
        CustomOpBuildError: our own sources do not compile with it, or the cache directory cannot be written.
    """
    toolchain = planned(compiler, sanitize=sanitize)
    directory = toolchain.worker.parent
    if not directory.is_dir():
        if on_progress:
            on_progress("compiling the runtime of custom operators, once for this compiler")
        _build(compiler, directory, toolchain.sanitize_flags)
    return toolchain


def planned(compiler: Compiler, *, sanitize: bool = False) -> Toolchain:
    """Return what `prepare` does, before its files are there."""
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


def _build(compiler: Compiler, directory: Path, flags: tuple[str, ...]) -> None:
    import tempfile

    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(directory.parent)
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
    except OSError as error:
        raise CustomOpBuildError(
            f"cannot write {directory.parent}: {error.strerror}", "set XDG_CACHE_HOME to another directory"
        ) from error
    try:
        _compile_all(compiler, scratch, flags)
        os.rename(scratch, directory)
    except OSError:
        # Somebody else was faster; theirs is as good as ours.
        if not directory.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _compile_all(compiler: Compiler, scratch: Path, flags: tuple[str, ...]) -> None:
    traps = ("-DNEURONTOOLS_NO_WRAP",) if compiler.is_zig else ()
    common = (*compiler.command, *BASE_FLAGS, *flags, *traps, "-I", str(INCLUDE))
    runtime, worker = (
        _together(scratch, "runtime", RUNTIME_SOURCES),
        _together(scratch, "worker", WORKER_SOURCES),
    )
    commands = [
        (*common, "-O1", "-c", runtime),
        (*common, "-O1", worker, "-o", "worker", "-ldl", "-pthread"),
    ]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: _run(command, scratch), commands))


def _together(scratch: Path, name: str, sources: tuple[str, ...]) -> str:
    unit = scratch / f"{name}.cpp"
    unit.write_text("".join(f'#include "{SOURCE / source}.cpp"\n' for source in sources), encoding="utf-8")
    return str(unit)


def _run(command: tuple[str, ...], directory: Path) -> None:
    result = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
        raise CustomOpBuildError(
            f"{command[0]} cannot compile the custom operator runtime: {(lines or ['no message'])[0]}",
            "try another compiler with CXX",
        )


def _sweep(directory: Path) -> None:
    limit = time.time() - _ABANDONED_S
    for left in directory.glob(".building-*"):
        try:
            if left.stat().st_mtime < limit:
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            continue


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler that answers.

    Args:
        command: the words that start it.
        version: first line of what it says of itself.
        is_clang: whether it takes clang's options (clang++, zig).
        is_zig: whether it is zig: its very first compile takes about a minute, and its linker has no --wrap.
        launcher: what the command is given to when it compiles: ccache, where that is installed.
    """

    command: tuple[str, ...]
    version: str
    is_clang: bool
    is_zig: bool = False
    launcher: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What object files made by it depend on."""
        return " ".join(self.command) + "\n" + self.version


def find_compiler(environ: Mapping[str, str] | None = None) -> Compiler:
    """Return the compiler to use.

    Raises:
        MissingDependencyError: there is none, or the one that CXX names does not work.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get("CXX", "").strip()
    if chosen:
        compiler = _probe(tuple(shlex.split(chosen)), environ)
        if compiler is None:
            raise MissingDependencyError(f"the compiler that CXX names does not work: {chosen}", _INSTALL)
        return compiler
    for name in ("g++", "clang++"):
        compiler = _probe((name,), environ)
        if compiler is not None:
            return compiler
    if find_spec("ziglang") is not None:
        compiler = _probe((sys.executable, "-m", "ziglang", "c++"), environ)
        if compiler is not None:
            return compiler
    raise MissingDependencyError("no C++ compiler found: custom operators need one", _INSTALL)


def _probe(command: tuple[str, ...], environ: Mapping[str, str]) -> Compiler | None:
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, *command[1:], "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0 or not answer.stdout.strip():
        return None
    is_zig = "ziglang" in command
    version = answer.stdout.splitlines()[0].strip()
    launcher = () if is_zig else _launcher(program, environ)
    return Compiler((program, *command[1:]), version, is_zig or "clang" in answer.stdout, is_zig, launcher)


def _launcher(program: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    # Distributions also install links to ccache under the compilers' names: once is enough.
    ccache = shutil.which("ccache", path=environ.get("PATH"))
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
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(lock)
        except OSError as error:
            raise CustomOpBuildError(
                f"cannot write {directory}: {error.strerror}", "set XDG_CACHE_HOME to another directory"
            ) from error
        yield
