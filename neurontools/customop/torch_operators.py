"""Operators of loaded libraries in torch: `torch.ops.<library>.<operator>`, its registration and its calls."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from neurontools.customop.arena import Block, holds, process_arena
from neurontools.customop.calls import PreparedCall
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.executors import WorkerExecutor
from neurontools.customop.marshalling import dtype_of, execute, import_torch, infer, values_of
from neurontools.customop.operation import CustomOperator, new_executor
from neurontools.customop.probe import remember_operator
from neurontools.customop.signal_takeover import signal_takeover

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from neurontools.customop.calls import Executor
    from neurontools.customop.operation import Value
    from neurontools.customop.package import OperatorEntry, Package

_logger = logging.getLogger("neurontools.customop")
_SIGNATURES_MAX = 1024


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """A library whose operators are registered.

    Args:
        path: its file.
        digest: SHA-256 of that file.
        code: digest of its code, equal for files with the same code.
        ops: qualified names of its operators.
    """

    path: str
    digest: str
    code: str
    ops: tuple[str, ...]


@dataclass(slots=True)
class _Registry:
    lock: threading.RLock = field(default_factory=threading.RLock)
    libraries: dict[str, LoadedLibrary] = field(default_factory=dict)  # by digest
    executors: dict[str, Executor] = field(default_factory=dict)  # by digest
    operations: dict[str, CustomOperator] = field(default_factory=dict)  # by qualified name
    callers: dict[str, Caller] = field(default_factory=dict)  # by qualified name
    owners: dict[str, str] = field(default_factory=dict)  # qualified name -> digest
    schemas: dict[str, str] = field(default_factory=dict)
    torch_libraries: list[Any] = field(default_factory=list)


_registry = _Registry()


def _renew_lock() -> None:
    # A thread of the parent may hold it.
    _registry.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def register(package: Package) -> LoadedLibrary:
    """Register a library's operators in torch; does nothing if they are registered already.

    A rebuilt library takes over the operators of the old one if their schemas are equal. Operations that the lazy device
    has recorded run first, with the old code; compiled functions of torch.compile are compiled again.

    Raises:
        CustomOpLibraryError: an operator exists already with another schema or from another source.
        MissingDependencyError: torch is not installed.
    """
    torch = import_torch()
    code = code_digest(package)
    takes_over = _takes_over(package, code)
    if takes_over:
        signal_takeover()  # not under the lock: listeners may call operators
    loaded = _register(torch, package, code)
    if takes_over:
        _reset_compiled()
    return loaded


def _register(torch: Any, package: Package, code: str) -> LoadedLibrary:
    with _registry.lock:
        known = _registry.libraries.get(package.sha256)
        if known is not None and all(_registry.owners.get(op) == package.sha256 for op in known.ops):
            return known
        entries = package.manifest.operators
        for entry in entries:
            _check_free(torch, entry)
        executor = _registry.executors.get(package.sha256) or new_executor(package)
        _registry.executors[package.sha256] = executor
        _warn_of_second_library(package)
        replaced = {_registry.owners[e.qualified] for e in entries if e.qualified in _registry.owners}
        for index, entry in enumerate(entries):
            made = CustomOperator(package, index, executor)
            _registry.operations[entry.qualified] = made
            _registry.callers[entry.qualified] = Caller(made)
            _registry.owners[entry.qualified] = package.sha256
            remember_operator(package, index)
            if entry.qualified not in _registry.schemas:
                _define(torch, entry)
        _close_unused(replaced)
        loaded = LoadedLibrary(
            package.path, package.sha256, code, tuple(entry.qualified for entry in entries)
        )
        _registry.libraries[package.sha256] = loaded
        return loaded


def loaded_libraries() -> tuple[LoadedLibrary, ...]:
    """Return the libraries whose operators are registered."""
    with _registry.lock:
        in_use = set(_registry.owners.values())
        return tuple(library for digest, library in _registry.libraries.items() if digest in in_use)


def operation(qualified: str) -> CustomOperator:
    """Return a registered operator.

    Raises:
        CustomOpLibraryError: no loaded library has it.
    """
    found = _registry.operations.get(qualified)
    if found is None:
        raise CustomOpLibraryError(f"no loaded library has an operator {qualified}", "load its library first")
    return found


def _reset_compiled() -> None:
    dynamo: Any = sys.modules.get("torch._dynamo")  # imported if anything was compiled
    if dynamo is not None:
        dynamo.reset()


def _takes_over(package: Package, code: str) -> bool:
    with _registry.lock:
        owners = {_registry.owners.get(entry.qualified) for entry in package.manifest.operators}
        found = (_registry.libraries.get(owner) for owner in owners if owner is not None)
        return any(library is not None and library.code != code for library in found)


def _check_free(torch: Any, entry: OperatorEntry) -> None:
    known = _registry.schemas.get(entry.qualified)
    if known is not None and known != entry.schema:
        raise CustomOpLibraryError(
            f"operator {entry.qualified} is loaded as {known}, the library has {entry.schema}",
            "restart the Python process to load the changed library",
        )
    # torch has no public function that tells whether an operator exists without resolving it.
    if known is None and entry.qualified in torch._C._dispatch_get_all_op_names():  # noqa: SLF001
        raise CustomOpLibraryError(
            f"operator {entry.qualified} already exists in torch",
            "rename the library in NEURON_LIBRARY",
        )


def _define(torch: Any, entry: OperatorEntry) -> None:
    library = torch.library.Library(entry.library, "FRAGMENT")
    library.define(entry.schema)
    library.impl(entry.name, _cpu_implementation(entry.qualified), "CPU")
    torch.library.register_fake(entry.qualified, _fake_implementation(entry.qualified), lib=library)
    _registry.torch_libraries.append(library)
    _registry.schemas[entry.qualified] = entry.schema


def _cpu_implementation(qualified: str) -> Callable[..., torch.Tensor]:
    callers = _registry.callers

    def run(*arguments: object) -> torch.Tensor:
        return callers[qualified](*arguments)

    return no_trace(run)


def _fake_implementation(qualified: str) -> Callable[..., torch.Tensor]:
    def fake(*arguments: object) -> torch.Tensor:
        torch = import_torch()
        shape = infer(_registry.operations[qualified], arguments)
        device = next((value.device for value in arguments if isinstance(value, torch.Tensor)), "meta")
        result: Any = torch.empty(shape.sizes, dtype=dtype_of(shape.dtype), device=device)
        return result

    return no_trace(fake)


def _warn_of_second_library(package: Package) -> None:
    names = {entry.qualified for entry in package.manifest.operators}
    others = [library for library in loaded_libraries() if not names & set(library.ops)]
    if others:
        _logger.warning(
            "%s is a second custom operator library in this process (%s is loaded): a model may use only one",
            package.path,
            others[0].path,
        )


def _close_unused(digests: set[str]) -> None:
    for digest in digests - set(_registry.owners.values()):
        executor = _registry.executors.pop(digest, None)
        _registry.libraries.pop(digest, None)
        if executor is not None:
            executor.close()


def code_digest(package: Package) -> str:
    """Return a digest (hex) of a library's code, independent of the paths of the library and its sources.

    The compiled parts are not hashed: their debugging information contains paths.
    """
    manifest = package.manifest
    facts = (
        manifest.abi,
        manifest.machine,
        manifest.compiler,
        (manifest.multicore, manifest.release, manifest.sanitize, manifest.stack_bytes),
        manifest.cflags,
        manifest.operators,
        sorted((os.path.basename(source.path), source.sha256) for source in manifest.sources),
        hashlib.sha256(package.parts.worker).hexdigest(),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def no_trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile does not trace, nor anything that it calls.

    A traced operator would keep the addresses of one call for all later calls. torch.compile traces implementations of
    operators where a compiled function is split into several graphs. A rule for the function's code object prevents it
    without a cost per call and without importing the compiler.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # an older torch
        from torch._compile import _disable_dynamo

        disabled: Callable[..., Any] = _disable_dynamo(function)
        return disabled
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return function


@dataclass(frozen=True, slots=True)
class _Signature:
    """Everything that shapes, dtypes and numbers of a call determine."""

    call: PreparedCall
    values: list[Value]
    empty: Callable[[], torch.Tensor]
    layout: tuple[tuple[int, ...], torch.dtype, int]


class Caller:
    """Calls an operator with CPU tensors."""

    def __init__(self, operation: CustomOperator) -> None:
        self._operation = operation
        self._tensor_type: type[torch.Tensor] = import_torch().Tensor
        self._signatures: dict[tuple[object, ...], _Signature] = {}

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """Return the result; it is in device memory if one of the tensors is."""
        executor = self._operation.executor
        if not isinstance(executor, WorkerExecutor):
            return execute(self._operation, arguments)[0]
        key: list[object] = []
        addresses: list[int] = []
        kept = []  # dense copies
        tensor_type = self._tensor_type
        for argument in arguments:
            if isinstance(argument, tensor_type):
                if not argument.is_contiguous():
                    kept.append(argument := argument.contiguous())
                key += (argument.shape, argument.dtype)
                addresses.append(argument.data_ptr())
            elif type(argument) is float:
                key += (float, argument.hex())  # 0.0 equals -0.0, and NaN equals nothing
            else:
                key += (type(argument), argument)
        signature = self._signatures.get(tuple(key)) or self._prepare(arguments, tuple(key))
        made: list[torch.Tensor] = []

        def result(block: Block | None) -> int:
            tensor = signature.empty() if block is None else tensor_in(block, *signature.layout)
            made.append(tensor)
            address: int = tensor.data_ptr()
            return address

        outcome = executor.run(signature.call, addresses, result)
        if outcome is not None:
            self._operation.complete(outcome, signature.values)
        return made[-1]

    def _prepare(self, arguments: Sequence[object], key: tuple[object, ...]) -> _Signature:
        operation = self._operation
        values = values_of(operation, arguments)
        shape = operation.infer(values)
        constant = [i for i, word in enumerate(operation.entry.parameters) if word == "const-tensor"]
        call = PreparedCall(operation.request(values, shape), constant)
        layout = (shape.sizes, dtype_of(shape.dtype), shape.nbytes)
        empty = partial(import_torch().empty, layout[0], dtype=layout[1])
        signature = _Signature(call, values, empty, layout)
        if len(self._signatures) >= _SIGNATURES_MAX:
            self._signatures.clear()
        self._signatures[key] = signature
        return signature


def device_resident(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense CPU copy of a tensor in device memory, or the tensor itself if it is there already.

    Operators read it in place, through a read-only mapping, if the kernel takes a `const torch::Tensor&`. Their results
    are in device memory too. Forked children share it, like tensors of `share_memory_()`.

    Raises:
        CustomOpLibraryError: device memory is full.
        MissingDependencyError: torch is not installed.
    """
    if is_device_resident(tensor) and tensor.is_contiguous():
        return tensor
    dense = tensor.detach().cpu().contiguous()
    nbytes = dense.nbytes
    if nbytes == 0:
        return dense
    block = process_arena().allocate(nbytes, held=True)
    copy = tensor_in(block, tuple(dense.shape), dense.dtype, nbytes)
    copy.copy_(dense)
    return copy


def is_device_resident(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's bytes are in device memory."""
    return tensor.device.type == "cpu" and holds(tensor.data_ptr())


def tensor_in(block: Block, sizes: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """Return a tensor at the end of a block; the tensor's storage keeps the block alive."""
    flat: Any = _frombuffer()(block, dtype=dtype, offset=block.nbytes - nbytes)
    return flat.view(*sizes) if sizes else flat.view(())


@cache
def _frombuffer() -> Any:
    return import_torch().frombuffer
