"""A NEFF that is executed on tensors of the CPU, outside any recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.neff import parse
from neurontools.compiler.work import written
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.buffers import intern_layout, view_of
from neurontools.xla.call_capture import geometry_from
from neurontools.xla.execution import generate, host_execution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Graph, View
    from neurontools.xla.accelerator import LoadedGraph

_FORBIDDEN = frozenset({"from_file", "set_", "resize_", "_resize_output_", "record_stream", "data_ptr"})
"""Operators that reach beyond the tensors of a graph."""


class NeffExecutable:
    """A NEFF with the border of its graph.

    Args:
        neff: its bytes. They may come from another computer: operators that reach beyond tensors are refused.
        inputs: what each input slot of the graph expects.
        scalars: values of its scalar inputs.
        results: where its results are.
        constant_bytes: device memory of the weights inside it.

    Raises:
        NeffError: the bytes are damaged.
        DeviceError: the graph calls an operator that a NEFF may not call.
    """

    def __init__(
        self,
        neff: bytes,
        inputs: Sequence[View],
        scalars: Sequence[float],
        results: Sequence[View],
        constant_bytes: int = 0,
    ) -> None:
        self._neff = neff
        self._constant_bytes = constant_bytes
        self._graph = parse(neff, validate_hash=True).graph
        _check(self._graph, inputs, scalars, results)
        self._inputs = tuple(inputs)
        self._scalars = tuple(scalars)
        self._results = tuple(results)
        self._written = {view.slot for node in self._graph.nodes for view in written(node)}
        self._run = generate(
            self._graph,
            [
                intern_layout(self._graph.slots[view.slot].nbytes, geometry_from(view))
                for view in self._inputs
            ],
        )
        self._fresh = tuple(slot for slot in self._graph.outputs if slot not in set(self._graph.inputs))

    def load(self, index: int) -> LoadedGraph:
        """Load it on a core of this process.

        Raises:
            NrtError: the core's memory is full.
        """
        return api.engine().accelerator.load_neff(index, self._neff, self._constant_bytes)

    def execute(self, loaded: LoadedGraph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Execute it and return its results; `tensors` are CPU tensors for its input slots, which stay as they are."""
        with host_execution():
            hosts = [self._host(view, tensor) for view, tensor in zip(self._inputs, tensors, strict=True)]
            outcome = api.engine().accelerator.execute(loaded, lambda: self._run(hosts, self._scalars), hosts)
            table: dict[int, torch.Tensor] = {
                **{view.slot: host for view, host in zip(self._inputs, hosts, strict=True)},
                **dict(zip(self._fresh, outcome, strict=True)),
            }
            return [view_of(table[view.slot], geometry_from(view)).clone() for view in self._results]

    def _host(self, view: View, tensor: torch.Tensor) -> torch.Tensor:
        dtype, shape, strides, offset = geometry_from(view)
        if view.slot not in self._written and offset == 0 and tensor.stride() == strides:
            return tensor.detach()
        flat = torch.zeros(self._graph.slots[view.slot].nbytes // dtype.itemsize, dtype=dtype)
        host = flat.as_strided(shape, strides, offset)
        host.copy_(tensor)
        return host


def _check(graph: Graph, inputs: Sequence[View], scalars: Sequence[float], results: Sequence[View]) -> None:
    for node in graph.nodes:
        namespace, name, *_ = node.op.split(".")
        if (namespace != "aten" and not graph.libraries) or name in _FORBIDDEN:
            raise DeviceError(
                f"the NEFF calls {node.op}, which a NEFF may not call", "compile the model again"
            )
    if tuple(view.slot for view in inputs) != graph.inputs or len(scalars) != graph.lifted:
        raise DeviceError("the model does not fit its NEFF", "compile the model again")
    known = {*graph.outputs, *graph.inputs}
    if any(view.slot not in known for view in results):
        raise DeviceError("the model's results do not fit its NEFF", "compile the model again")


def compile_exported(graph: Any, flags: Sequence[str]) -> bytes:
    """Return the NEFF of a graph; the persistent compile cache is not used.

    Raises:
        CompileError: the compiler refuses the graph or a flag.
    """
    return api.engine().accelerator.compile(graph, flags)
