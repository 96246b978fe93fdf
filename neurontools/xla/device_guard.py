"""The device guard and views in C++: compiled at the first use of the device, then loaded from the cache directory.

Torch calls the guard of a device in functions that must not throw, also while an exception leaves a backward pass. A
guard in Python cannot be called then, and the process ends with SIGABRT. The kernels of views are in the same library
because a view in Python takes longer than recording an operator.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from neurontools import paths
from neurontools.base.files import owned_directory
from neurontools.customop.building.native_library import ensure_library
from neurontools.errors import MissingDependencyError, NeuronToolsError
from neurontools.xla import recorder_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from neurontools.customop.building.toolchain import Compiler
    from neurontools.runtime.memory import MemoryInfo

_REMEDY = "set XDG_CACHE_HOME to a directory of this user that allows executables"
GUARD_REMEDY = "install g++ or clang++; 'neurontools doctor' checks the guard"
_SOURCE = Path(__file__).with_suffix(".cpp")
_HEADERS = tuple(map(_SOURCE.with_name, ("device_views.h", "pinned_memory.h", "worker_sums.h")))
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-s")
_VIEWS = ("as_strided", "view", "_reshape_alias", "t", "transpose.int")
_DONE, _FAILED = 1, 2
_SYNC, _READ_MEMORY, _RESET_PEAK, _CHECK = range(4)
_CALLBACK = ctypes.CFUNCTYPE(
    None,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(ctypes.c_char),
    ctypes.c_size_t,
)
_registered: list[
    tuple[ctypes.CDLL, object]
] = []  # never freed: torch keeps the guard until the process ends


class GuardedDevices(Protocol):
    """What the guard asks of the devices of this process."""

    def sync(self, index: int | None) -> None:
        """Run the operators recorded on a device, None stands for all."""

    def memory(self, index: int) -> MemoryInfo:
        """Return the memory of a device."""

    def reset_peak_memory(self, index: int) -> None:
        """Let the peak of a device's memory start again at the memory in use."""

    def check_device(self, index: int) -> None:
        """Check that a device exists; raises DeviceError otherwise."""


class DeviceGuardError(NeuronToolsError):
    """The device guard in C++ cannot be compiled or loaded."""


def register_guard(torch_directory: str, devices: Callable[[], GuardedDevices]) -> None:
    """Register the guard with torch.

    Args:
        torch_directory: the directory of the package torch.
        devices: returns the devices; called when torch asks.

    Raises:
        NeuronToolsError: it cannot be compiled or loaded; torch has no guard then.
    """
    path = ensure_guard(torch_directory)
    try:
        # By descriptor: the directory cannot be replaced after the check.
        with owned_directory(os.path.dirname(path), os.geteuid(), _REMEDY) as directory:
            library = ctypes.CDLL(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except OSError as error:
        raise DeviceGuardError(f"cannot load {path}: {error}", f"remove the file, or {_REMEDY}") from error
    answer = _answering(devices)
    recorder_lock.deliver_from(answer, at_once=True)
    callback = _CALLBACK(answer)
    library.register_guard(callback, ctypes.c_void_p(recorder_lock.address()))
    _registered.append((library, callback))


def register_views() -> tuple[str, ...]:
    """Register the kernels of views in C++ and return their names; none without the guard in C++."""
    for library, _ in _registered:
        library.register_views.restype = ctypes.c_bool
        if library.register_views():
            return _VIEWS
    return ()


def is_registered() -> bool:
    """Return whether torch has the guard in C++, and with it the hooks of `pinned_memory.h`."""
    return bool(_registered)


def find_sum() -> Callable[..., None] | None:
    """Return the function of `worker_sums.h`, None without the guard in C++."""
    return next((typed_sum(library) for library, _ in _registered), None)


def typed_sum(library: ctypes.CDLL) -> Callable[..., None]:
    """Return the function of `worker_sums.h` in a compiled guard."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = library.add_and_scale
    function.argtypes = [pointer, pointer, integer, pointer, integer, ctypes.c_float]
    function.restype = None
    return function


def take_contents(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Give a tensor what another has, on whatever device, but keep what autograd knows of it.

    Returns:
        False without the guard in C++ and for subclasses with a dispatch of their own; nothing has changed then.
    """
    for library, _ in _registered:
        function = library.take_contents
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        function.restype = ctypes.c_bool
        return bool(function(target._cdata, source._cdata))  # noqa: SLF001
    return False


def storage_sizer() -> Callable[[torch.UntypedStorage, int], Any]:
    """Return the function that tells torch the size of a new storage; without the guard in C++, torch takes it as empty."""
    import torch

    return torch._C.StorageBase.resize_ if _registered else lambda *_: None  # noqa: SLF001


def resize_storage(storage: torch.UntypedStorage, nbytes: int) -> None:
    """Tell torch another size of a storage of the device; its contents are not looked at."""
    for library, _ in _registered:
        library.resize_storage(ctypes.c_void_p(storage._cdata), ctypes.c_size_t(nbytes))  # noqa: SLF001


def set_device_count(count: int) -> None:
    """Tell the guard the number of devices, before there are tensors on them; it never shrinks."""
    for library, _ in _registered:
        library.set_device_count(count)


def ensure_guard(torch_directory: str) -> str:
    """Return the path of the compiled guard; it is compiled if there is no intact one for this torch and compiler.

    Raises:
        NeuronToolsError: there is no compiler, or the guard does not compile, or the directory cannot be written.
    """
    libraries = (f"{torch_directory}/lib/{name}.so" for name in ("libc10", "libtorch_cpu"))

    def command(compiler: Compiler) -> list[str]:
        if compiler.is_zig:
            raise MissingDependencyError("zig has another C++ library than torch", "install g++ or clang++")
        return [*_FLAGS, str(_SOURCE), "-isystem", f"{torch_directory}/include", *libraries]

    path = f"{paths.cache_home()}/device-guard/{_key(torch_directory)}.so"
    return ensure_library(path, "the device guard", command)


def _key(torch_directory: str) -> str:
    digest = hashlib.sha256("\n".join((*_FLAGS, os.uname().machine)).encode())
    for file in (_SOURCE, *_HEADERS, Path(torch_directory, "version.py")):
        digest.update(file.read_bytes())
    # Without a start of the compiler: this is done whenever a program starts.
    chosen = os.environ.get("CXX", "").split()[:1] or ["g++", "clang++"]
    program = next(filter(None, map(shutil.which, chosen)), None)
    if program is not None:
        status = os.stat(program)
        digest.update(f"{program} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:20]


def _answering(devices: Callable[[], GuardedDevices]) -> Callable[[int, int, Any, Any, Any, int], None]:
    def answer(request: int, index: int, outcome: Any, numbers: Any, text: Any, size: int) -> None:
        try:
            if request == _READ_MEMORY:
                memory = devices().memory(index)
                numbers[0], numbers[1], numbers[2] = memory.used_bytes, memory.peak_bytes, memory.limit_bytes
            elif request == _RESET_PEAK:
                devices().reset_peak_memory(index)
            elif request == _CHECK:
                devices().check_device(index)
            else:
                devices().sync(index if index >= 0 else None)
            outcome[0] = _DONE
        except BaseException as error:  # noqa: BLE001  raised again, in other threads as torch's RuntimeError
            if not recorder_lock.keep(error):
                message = str(error).encode()[: size - 1]
                ctypes.memmove(text, message, len(message))
                outcome[0] = _FAILED

    return answer
