"""Host files at their real paths, in the programs that neuron-run starts: the library `host_files.c` is preloaded.

Without a compiler, Python's own calls alone see them (`host_calls`). `python -m neurontools.compat.host_files` starts the
machine: the library runs it if no neurond listens.
"""

from __future__ import annotations

import os

from neurontools import __version__, env, paths
from neurontools.errors import MissingDependencyError, NeuronToolsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PRELOAD = "LD_PRELOAD"
_FOLDER = "host-files"
_SOURCES = tuple(f"{os.path.dirname(__file__)}/{name}" for name in ("host_files.c", "host_mirror.h"))
_SEPARATORS = frozenset(" :\n")  # of LD_PRELOAD, which knows no quotes
_FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-delete-null-pointer-checks", "-s", "-w")
_ASAN, _ANY_ORDER = "ASAN_OPTIONS", "verify_asan_link_order=0"


def variables(base: Mapping[str, str], python: str) -> dict[str, str]:
    """Return the environment variables that show a machine's host files to a program.

    Args:
        base: the environment; other preloaded libraries stay first.
        python: the interpreter that starts a machine at the first look at a file.
    """
    values = {env.HOST_FILES: f"{paths.runtime_dir()}/{env.machine()}", env.HOST_PYTHON: python}
    try:
        library = ensure_preload()
    except NeuronToolsError:
        return values
    preloaded = base.get(PRELOAD, "")
    if library not in preloaded.split(":"):
        values[PRELOAD] = ":".join(filter(None, [preloaded, library]))
    if _ANY_ORDER not in base.get(_ASAN, ""):
        # A program with the address sanitizer refuses to start after another library.
        values[_ASAN] = ":".join(filter(None, [base.get(_ASAN, ""), _ANY_ORDER]))
    return values


def is_preloaded(environ: Mapping[str, str]) -> bool:
    """Return whether the library is preloaded in programs with an environment."""
    return f"/{_FOLDER}/" in environ.get(PRELOAD, "")


def ensure_preload() -> str:
    """Return the path of the library; it is compiled at the first use.

    Raises:
        NeuronToolsError: there is no compiler, it refuses the source, or the path cannot be preloaded.
    """
    changed_ns = max(os.stat(source).st_mtime_ns for source in _SOURCES)
    path = f"{paths.cache_home()}/{_FOLDER}/{__version__}-{changed_ns:x}.so"
    if not _SEPARATORS.isdisjoint(path):
        raise NeuronToolsError(
            f"cannot preload {path}: its path has a space or a colon",
            "set XDG_CACHE_HOME to another directory",
        )
    if _is_ours(path):  # every neuron-run passes here: no import of the builder
        return path
    _check_compiler()
    from neurontools.customop.building.native_library import ensure_library
    from neurontools.sysfs.layout import MAJOR

    arguments = ("-x", "c", *_FLAGS, f"-DNEURON_MAJOR={MAJOR}", _SOURCES[0], "-ldl", "-pthread")
    return ensure_library(path, "the library of host files", lambda _: arguments)


def _check_compiler() -> None:
    # Every neuron-run without a compiler passes here. zig is none of these: its first compile takes a minute.
    import shutil

    names = os.environ.get("CXX", "").split()[:1] or ["g++", "clang++"]
    if not any(map(shutil.which, names)):
        raise MissingDependencyError(
            "no C++ compiler found", "install g++ (apt-get install g++, dnf install gcc-c++)"
        )


def _is_ours(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


if __name__ == "__main__":
    from neurontools.machine.launch import ensure_running

    try:
        ensure_running()
    except NeuronToolsError:
        raise SystemExit(1) from None
