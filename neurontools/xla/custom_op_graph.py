"""Custom operators in a graph: which libraries it needs, and those libraries for its NEFF."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from neurontools.compiler.graph import View, reads
from neurontools.compiler.neff import NativePart
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from neurontools.compiler.graph import Graph, Node
    from neurontools.customop.torch_operators import LoadedLibrary

T = TypeVar("T")


def libraries_of(operators: Iterable[str]) -> tuple[str, ...]:
    """Return the code of every loaded library that one of these operators (`my_ops.relu.default`) is from."""
    used = {qualified_name(name) for name in operators}
    return tuple(sorted({library.code for library in _loaded() if used & set(library.ops)}))


def operators_of(libraries: Iterable[str]) -> frozenset[str]:
    """Return the qualified names of the operators of those libraries, given by their code, that are loaded."""
    codes = set(libraries)
    return frozenset(name for library in _loaded() if library.code in codes for name in library.ops)


def is_custom_operator(name: str) -> bool:
    """Return whether a loaded library defines an operator, given as my_ops::relu."""
    return any(name in library.ops for library in _loaded())


def qualified_name(op: str) -> str:
    """Return my_ops::relu for `my_ops.relu.default`."""
    return op.rpartition(".")[0].replace(".", "::")


def native_parts(graph: Graph) -> tuple[NativePart, ...]:
    """Return the libraries that a graph's NEFF carries, with what the calls of their operators take by the model."""
    if not graph.libraries:
        return ()
    parts = []
    for library in _loaded():
        if library.code in graph.libraries:
            data = Path(library.path).read_bytes()
            parts.append(
                NativePart(os.path.basename(library.path), library.digest, data, _call_ns(graph, library))
            )
    return tuple(parts)


def native_inputs(graph: Graph) -> tuple[int, ...]:
    """Return the inputs of a graph that its custom operators read."""
    if not graph.libraries:
        return ()
    ops = {name for library in _loaded() for name in library.ops}
    read = {view.slot for node in graph.nodes if qualified_name(node.op) in ops for view in reads(node)}
    return tuple(slot for slot in graph.inputs if slot in read)


def in_machine_memory(host: torch.Tensor) -> torch.Tensor:
    """Return a device tensor's contents where a custom operator's worker reads them in place.

    They move there once, and what the operator makes of them lies there too. What is not dense stays where it is, and
    so does everything when there is no room: it is copied at each call then.
    """
    from neurontools.customop.errors import CustomOpLibraryError
    from neurontools.customop.torch_operators import device_resident

    if not host.is_contiguous():
        return host
    try:
        return device_resident(host)
    except CustomOpLibraryError:
        return host


def execute_natively(execute: Callable[[Callable[[], T]], T], run: Callable[[], T]) -> T:
    """Execute a graph with custom operators by `execute`; an operator that hangs counts as a timeout of the runtime.

    Raises:
        NeuronCustomOpError: an operator fails.
    """
    from neurontools.customop.errors import NeuronCustomOpError

    def run_once() -> T:
        try:
            return run()
        except NeuronCustomOpError as error:
            if error.kind != "timeout":
                raise
            raise NrtError("nrt_execute", NrtStatus.NRT_TIMEOUT) from error

    try:
        return execute(run_once)
    except NrtError as error:
        if isinstance(error.__cause__, NeuronCustomOpError):
            raise error.__cause__ from None  # names operator, line and shapes
        raise


def _loaded() -> tuple[LoadedLibrary, ...]:
    module = sys.modules.get("neurontools.customop.torch_operators")  # without it no library is loaded
    if module is None:
        return ()
    found: tuple[LoadedLibrary, ...] = module.loaded_libraries()
    return found


def _call_ns(graph: Graph, library: LoadedLibrary) -> tuple[tuple[int, int], ...]:
    ops = set(library.ops)
    calls = enumerate(graph.nodes)
    return tuple((position, _modelled_ns(node)) for position, node in calls if qualified_name(node.op) in ops)


def _modelled_ns(node: Node) -> int:
    from neurontools.customop.cost import TensorOperand
    from neurontools.customop.probe import operator_ns

    operands = tuple(
        TensorOperand(value.shape, value.dtype)
        if isinstance(value, View)
        else value
        if isinstance(value, int | float)
        else None  # lifted: its value is not part of the graph
        for value in (*node.args, *(value for _, value in node.kwargs))
    )
    return operator_ns(qualified_name(node.op), operands) or 0
