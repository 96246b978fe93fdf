"""Our own small native libraries, compiled at the first use and kept in the cache directory.

A library ends with the SHA-256 of the bytes before it. A truncated library, after a full disk or a power failure, would
end the process that loads it, so it is compiled again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.files import READ_SAFELY, write_atomic
from neurontools.customop.errors import CustomOpBuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.building.toolchain import Compiler

_COMPILE_TIMEOUT_S = 120.0
_log = logging.getLogger("neurontools.xla")


def ensure_library(path: str, name: str, arguments: Callable[[Compiler], Sequence[str]]) -> str:
    """Return the path of a library, which is compiled if the file is missing or damaged.

    Args:
        path: where it is kept.
        name: what messages call it.
        arguments: returns the arguments of a compiler, without `-o`.

    Raises:
        NeuronToolsError: there is no compiler, or it refuses the source, or the directory cannot be written.
    """
    if is_intact(path):
        return path
    from neurontools.customop.building.toolchain import build_lock, find_compiler

    compiler = find_compiler()
    words = (*compiler.command, *arguments(compiler))
    with build_lock(Path(path), lambda: _log.info("waiting for another process that compiles %s", name)):
        if not is_intact(path):
            start_s = time.monotonic()
            _compile(words, name, path)
            _log.info("compiled %s in %.1f s: %s", name, time.monotonic() - start_s, path)
    return path


def is_intact(path: str) -> bool:
    """Return whether a library is complete, and only this user can have written it."""
    try:
        with open(os.open(path, READ_SAFELY), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return False
            data = file.read()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return hashlib.sha256(data[:-size]).digest() == data[-size:]


def _compile(words: Sequence[str], name: str, path: str) -> None:
    import subprocess
    from tempfile import TemporaryDirectory

    from neurontools.customop.building.toolchain import first_error, run_program, unwritable

    try:
        paths.make_private(os.path.dirname(path))
        with TemporaryDirectory() as directory:
            library = Path(directory, "library.so")
            done = run_program((*words, "-o", str(library)), timeout_s=_COMPILE_TIMEOUT_S)
            data = library.read_bytes() if done.returncode == 0 and library.is_file() else b""
        if data:
            if os.path.isdir(path):
                shutil.rmtree(path)
            write_atomic(path, data + hashlib.sha256(data).digest(), mode=0o600)
            return
    except subprocess.TimeoutExpired as error:
        raise CustomOpBuildError(
            f"{words[0]} did not compile {name} in {_COMPILE_TIMEOUT_S:.0f} s",
            "try another compiler with CXX",
        ) from error
    except OSError as error:
        raise unwritable(os.path.dirname(path), error) from error
    raise CustomOpBuildError(
        f"{words[0]} cannot compile {name}: {first_error(done)}", "try another compiler with CXX"
    )
