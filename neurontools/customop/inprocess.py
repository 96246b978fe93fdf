"""The executor for debuggers: the library is loaded into this process, a crash is a crash of this process."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.customop import abi
from neurontools.customop.calls import Buffer, Outcome, outcome_of
from neurontools.customop.errors import CustomOpLibraryError

if TYPE_CHECKING:
    from neurontools.customop.package import Parts


class InProcessExecutor:
    """Runs a library's functions in this process, one call at a time; no guards, no time limit.

    Raises:
        CustomOpLibraryError: it cannot be loaded.
    """

    def __init__(self, parts: Parts, name: str) -> None:
        self._lock = threading.Lock()
        kernel = _load(parts.kernel, f"{name}-kernel")
        self._functions = {
            abi.SHAPE_COMMAND: _load(parts.shape, f"{name}-shape"),
            abi.RUN_COMMAND: kernel,
            abi.PLACES_COMMAND: kernel,
        }
        _live.add(self)

    def call(self, request: abi.Request, inputs: dict[int, Buffer], output: Buffer | None) -> Outcome:
        """Run a function on the caller's own bytes."""
        for index, buffer in inputs.items():
            tensor = request.arguments[index].tensor
            tensor.data = tensor.const_data = buffer.address
        if output is not None:
            request.output.data = request.output.const_data = output.address
        reply = abi.Reply()
        with self._lock:
            start = time.monotonic_ns()
            self._functions[request.command](ctypes.byref(request), ctypes.byref(reply))
            reply.elapsed_ns = time.monotonic_ns() - start
        return outcome_of(reply, request.core_count)

    def close(self) -> None:
        """Nothing to free: code that was loaded stays."""

    def forked(self) -> None:
        """Forget, in a forked child, that a thread of the parent is in a call."""
        self._lock = threading.Lock()


_live: weakref.WeakSet[InProcessExecutor] = weakref.WeakSet()


def _forked() -> None:
    for executor in list(_live):
        executor.forked()


os.register_at_fork(after_in_child=_forked)


def _load(contents: bytes, name: str) -> ctypes._NamedFuncPointer:
    # A file with a name: debuggers look for symbols there. It must differ for each library that was ever loaded.
    directory = tempfile.mkdtemp(prefix="neuron-customop-")
    atexit.register(_remove, directory, os.getpid())
    path = Path(directory) / f"{name}.so"
    try:
        path.write_bytes(contents)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise CustomOpLibraryError(
            f"cannot load {name}: {error}", "build it again, or set TMPDIR to where code may be loaded from"
        ) from error
    function = library.neurontools_call
    function.restype = None
    return function


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(directory, ignore_errors=True)
