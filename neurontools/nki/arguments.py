"""Arguments and results of kernels: arrays of numpy, torch and jax, and the tensors that stand for them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from neurontools.errors import UsageError
from neurontools.nki.context import Launch, fail
from neurontools.nki.dtypes import dtype_name, numpy_dtype, packed_dtype
from neurontools.nki.errors import KernelError
from neurontools.nki.locations import UserLine
from neurontools.nki.memory import ON_CHIP, Allocation, MemoryRegion, Storage
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from collections.abc import Callable

_UNSUPPORTED_BYTES = 8
_TORCH_BITS = {"bfloat16": "bfloat16", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}

_SUSPENDED = (
    (inspect.CO_GENERATOR, "a generator", "return the results, in place of yield"),
    (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR, "asynchronous", "define it with def, not async def"),
)
"""Functions whose call does not run them: flags of their code, what they are called, and the remedy."""


def _is_known(dtype: np.dtype[Any]) -> bool:
    try:
        dtype_name(dtype)
    except UsageError:
        return False
    return True


class Arguments:
    """The arrays that a kernel is called with, and the tensors that stand for them.

    Args:
        launch: the call.
        function: the kernel, for the names of its parameters.
    """

    def __init__(self, launch: Launch, function: Callable[..., Any]) -> None:
        self._launch = launch
        self._function = function
        self._copies: list[tuple[NkiTensor, Any]] = []
        self._kind = "numpy"
        self._packed: set[str] = set()
        self._tensors: dict[int, NkiTensor] = {}
        plain = inspect.unwrap(function)
        code = (plain.func if isinstance(plain, functools.partial) else plain).__code__
        self._place = UserLine(code.co_filename, code.co_firstlineno)
        for flag, kind, remedy in _SUSPENDED:
            if code.co_flags & flag:
                reason = f"{self._place}: {function.__name__}: is {kind}, kernels are functions that return"
                raise KernelError(reason, remedy)

    def named(self, args: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Return positional arguments with the names of their parameters."""
        names = list(inspect.signature(self._function).parameters)
        names += [f"argument {number}" for number in range(len(names), len(args))]
        return list(zip(names, args, strict=False))

    def wrap(self, value: Any, name: str) -> Any:
        """Return what the kernel gets for an argument: a tensor in HBM for an array, containers of them."""
        if isinstance(value, NkiTensor | str | int | float | bool) or value is None:
            return value
        if isinstance(value, np.ndarray):
            return self._tensor(value, value, name)
        if isinstance(value, list | tuple):
            items = [self.wrap(item, f"{name}[{number}]") for number, item in enumerate(value)]
            if hasattr(value, "_fields"):
                return type(value)(*items)
            return type(value)(items)
        if isinstance(value, dict):
            return {key: self.wrap(item, f"{name}[{key!r}]") for key, item in value.items()}
        module = type(value).__module__.partition(".")[0]
        if module == "torch" and hasattr(value, "detach"):
            self._kind = "torch"
            return self._tensor(_torch_array(value), value, name)
        if module in {"jax", "jaxlib"} and hasattr(value, "__array__"):
            self._kind = "jax"
            return self._tensor(np.array(value), value, name)
        if hasattr(value, "__dict__") and not callable(value) and not isinstance(value, type):
            self._wrap_fields(value, name)
        return value

    def _wrap_fields(self, value: Any, name: str) -> None:
        for field, item in list(vars(value).items()):
            if isinstance(item, np.ndarray):
                object.__setattr__(value, field, self.wrap(item, f"{name}.{field}"))

    def _tensor(self, array: np.ndarray, original: Any, name: str) -> NkiTensor:
        tensor = self._tensors.get(id(original))
        if tensor is not None:
            return tensor
        array = self._narrowed(array, name)
        dtype = dtype_name(array.dtype)
        allocation = Allocation(MemoryRegion.shared_hbm, array.shape or (1,), dtype, self._place, name)
        allocation.is_argument = True
        self._launch.allocations.append(allocation)
        flat = np.ascontiguousarray(array).reshape(-1)
        if not flat.flags.writeable:
            flat = flat.copy()
        held = numpy_dtype(dtype)
        if flat.dtype.names:
            self._packed.add(dtype)
            flat = flat.view(held)
        elif flat.dtype != held:
            flat = flat.astype(held)
        tensor = NkiTensor(allocation.shape, dtype, Storage(allocation, flat))
        self._tensors[id(original)] = tensor
        if not np.shares_memory(flat, original if isinstance(original, np.ndarray) else array):
            self._copies.append((tensor, original))
        return tensor

    def _narrowed(self, array: np.ndarray, name: str) -> np.ndarray:
        """Return an array of a type that NeuronCores have; 64 bits become 32, which must hold the integers."""
        kind = array.dtype.kind
        if array.dtype.names is None and array.dtype.itemsize == _UNSUPPORTED_BYTES and kind in "iuf":
            narrow = array.astype({"f": np.float32, "i": np.int32, "u": np.uint32}[kind])
            if kind != "f" and not np.array_equal(narrow, array):
                fail(
                    self._function.__name__,
                    f"argument {name} has numbers beyond 32 bits",
                    "NeuronCores have no more",
                )
            return narrow
        if kind in "cOSUMm" or array.dtype.itemsize > _UNSUPPORTED_BYTES or not _is_known(array.dtype):
            fail(
                self._function.__name__,
                f"argument {name} has type {array.dtype}, which NeuronCores lack",
                "convert it, for example with astype(np.float32)",
            )
        return array

    def copy_back(self) -> None:
        """Write what the kernel changed in copies of arguments to the arguments."""
        written = self._launch.written()
        for tensor, original in self._copies:
            if tensor.storage.allocation in written:
                values = tensor.array()
                if isinstance(original, np.ndarray):
                    if not original.flags.writeable:
                        label = tensor.storage.allocation.label
                        fail(
                            self._function.__name__,
                            f"writes argument {label}, a read-only array",
                            "pass a copy of it",
                        )
                    original[...] = values.reshape(original.shape).astype(original.dtype)
                elif hasattr(original, "copy_"):
                    original.copy_(_as_torch(values).reshape(original.shape))

    def as_caller(self, array: np.ndarray) -> Any:
        """Return an array as the kind of the caller's arguments."""
        return _as_torch(array) if self._kind == "torch" else array

    def results(self, value: Any) -> Any:
        """Return what a call returns for what the kernel does: tensors, alone or in containers, or nothing."""
        result = self.unwrap(value)
        if result is value and not isinstance(value, list | tuple | dict) and value is not None:
            raise KernelError(
                f"{self._place}: {self._function.__name__}: returns a value of type {type(value).__name__}, results are tensors",
                "return the tensors in a tuple"
                if isinstance(value, Iterator)
                else "store it to a tensor declared with buffer=nl.shared_hbm, and return that",
            )
        if (
            value is None
            and self._launch.checks
            and not any(item.is_argument for item in self._launch.written())
        ):
            self._launch.warn(
                "results",
                f"{self._function.__name__}: returns None and writes no argument, so it has no result",
                self._place,
            )
        return result

    def unwrap(self, value: Any) -> Any:
        """Return the results of a kernel as arrays of the caller's kind."""
        if isinstance(value, NkiTensor):
            region = value.buffer
            if region in ON_CHIP or region is MemoryRegion.private_hbm:
                raise KernelError(
                    f"{self._place}: {self._function.__name__}: returns {value.storage.allocation.label} in "
                    f"{region.value}, results must be in shared HBM\n"
                    f"note: {value.storage.allocation.label} declared at {value.storage.allocation.location}",
                    "declare it with buffer=nl.shared_hbm",
                )
            array = np.array(value.array())
            if value.dtype in self._packed:
                array = array.view(packed_dtype(value.dtype))
            return self.as_caller(array)
        if isinstance(value, list | tuple):
            items = [self.unwrap(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {key: self.unwrap(item) for key, item in value.items()}
        return value


def _torch_array(tensor: Any) -> np.ndarray:
    """Return a torch tensor's elements as an array that shares its memory where it can."""
    host = tensor.detach()
    if host.device.type != "cpu":
        host = host.cpu()
    name = str(host.dtype).removeprefix("torch.")
    if name in _TORCH_BITS:
        import torch

        bits = host.contiguous().view(torch.uint16 if host.element_size() == 2 else torch.uint8)
        return bits.numpy().view(getattr(ml_dtypes, _TORCH_BITS[name]))
    return host.numpy()


def _as_torch(array: np.ndarray) -> Any:
    import torch

    name = array.dtype.name
    if name in _TORCH_BITS:
        bits = array.view(np.uint16 if array.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits.copy()).view(getattr(torch, _TORCH_BITS[name]))
    return torch.from_numpy(np.array(array))
