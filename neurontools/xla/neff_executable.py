"""A NEFF that is executed on tensors of the CPU, outside any recording."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from neurontools.base.interrupts import is_of_handler
from neurontools.compiler.neff import parse
from neurontools.compiler.work import written
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.core_arithmetic.arithmetic import numerics_of
from neurontools.xla.execution import generate, host_execution, last_use_of_slots, overload_of, run_call
from neurontools.xla.fallback import has_pending_bits
from neurontools.xla.geometry import geometry_of, intern_layout, view_of
from neurontools.xla.graph_values import geometry_from
from neurontools.xla.neff_checks import check_graph, check_view, is_made, sound_results
from neurontools.xla.operators import operator_of
from neurontools.xla.program import build_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.compiler.graph import Graph, View
    from neurontools.xla.accelerator import LoadedGraph
    from neurontools.xla.core_arithmetic.arithmetic import DeviceNumerics
    from neurontools.xla.recorded_trace import RecordedInput

_compiled_here: set[bytes] = set()  # sha256 of the NEFFs that this process has compiled
_PASSES = 3


class NeffExecutable:
    """A NEFF with the border of its graph.

    Args:
        neff: its bytes. If another process has compiled it, `neff_checks` says what it may do.
        inputs: what each input slot of the graph expects.
        scalars: values of its scalar inputs.
        results: where its results are.
        constant_bytes: device memory of the weights inside it.
        name: what it is called in messages.

    Raises:
        NeffError: the bytes are damaged.
        DeviceError: it is not for these inputs, or its graph may not run here.
    """

    def __init__(
        self,
        neff: bytes,
        inputs: Sequence[View],
        scalars: Sequence[float],
        results: Sequence[View],
        constant_bytes: int = 0,
        name: str = "the NEFF",
    ) -> None:
        self._data = neff
        self._constant_bytes = constant_bytes
        self._neff = parsed = parse(neff, validate_hash=True)
        self._graph = parsed.graph
        self._numerics = numerics_of(api.engine().accelerator.numerics_for(parsed.flags))
        _check(self._graph, inputs, scalars, results)
        self._name = name
        self._is_sound = hashlib.sha256(neff).digest() in _compiled_here
        if not self._is_sound:
            check_graph(self._graph, inputs, scalars, name)
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
            self._numerics,
        )
        self._fresh = tuple(slot for slot in self._graph.outputs if slot not in set(self._graph.inputs))

    def load(self, index: int) -> LoadedGraph:
        """Load it on a core of this process.

        Raises:
            NrtError: the core's memory is full.
        """
        return api.engine().accelerator.load_neff(index, self._neff, self._data, self._constant_bytes)

    def execute(self, loaded: LoadedGraph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Execute it and return its results; `tensors` are CPU tensors for its input slots, which stay as they are."""
        with host_execution():
            hosts = [self._host(view, tensor) for view, tensor in zip(self._inputs, tensors, strict=True)]
            run = self._run if self._is_sound else self._run_checked
            outcome = api.engine().accelerator.execute(loaded, lambda: run(hosts, self._scalars), hosts)
            self._is_sound = True  # results have the same form in each execution
            table: dict[int, torch.Tensor] = {
                **{view.slot: host for view, host in zip(self._inputs, hosts, strict=True)},
                **dict(zip(self._fresh, outcome, strict=True)),
            }
            return [view_of(table[view.slot], geometry_from(view)).clone() for view in self._results]

    def _run_checked(self, inputs: Sequence[torch.Tensor], scalars: Sequence[float]) -> Any:
        return execute_checked(self._graph, inputs, scalars, self._name, self._numerics)

    def _host(self, view: View, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor as the contents of an input's buffer: the tensor itself where it is just that."""
        geometry = dtype, shape, strides, offset = geometry_from(view)
        nbytes = self._graph.slots[view.slot].nbytes
        is_buffer = geometry_of(tensor) == geometry and tensor.untyped_storage().nbytes() >= nbytes
        if is_buffer and view.slot not in self._written and not has_pending_bits(tensor):
            return tensor.detach()
        flat = torch.zeros(-(-nbytes // dtype.itemsize), dtype=dtype)
        host = flat.as_strided(shape, strides, offset)
        host.copy_(tensor)
        return host


def execute_checked(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    scalars: Sequence[float],
    name: str,
    numerics: DeviceNumerics | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Execute a checked graph call by call: no call gets a tensor of which the graph states another form.

    Torch's meta kernels, by which a graph is checked, accept arguments that some CPU kernels take for others.

    Args:
        graph: the graph.
        inputs: contents of its input slots.
        scalars: values of its scalar inputs.
        name: what its NEFF is called in messages.
        numerics: computes instead of torch's kernels.

    Raises:
        DeviceError: an operator returns another tensor than the graph states.
    """
    hosts: list[torch.Tensor | None] = [None] * len(graph.slots)
    for slot, tensor in zip(graph.inputs, inputs, strict=True):
        hosts[slot] = tensor
    unused, outputs = last_use_of_slots(graph.nodes), set(graph.outputs)
    for position, node in enumerate(graph.nodes):
        operator = operator_of(overload_of(node))
        results = run_call(operator, node, hosts, scalars, numerics)
        for view, result in () if operator.returns_parameter >= 0 else sound_results(node, results):
            if not is_made(graph, view, result):
                raise DeviceError(
                    f"{name}: {node.op} returns another tensor than the graph states",
                    "compile the model again",
                )
            hosts[view.slot] = result if hosts[view.slot] is None else hosts[view.slot]
        for slot in unused.get(position, ()):
            hosts[slot] = hosts[slot] if slot in outputs else None
    given = set(graph.inputs)
    return tuple(hosts[slot] for slot in graph.outputs if slot not in given)


def _check(graph: Graph, inputs: Sequence[View], scalars: Sequence[float], results: Sequence[View]) -> None:
    if tuple(view.slot for view in inputs) != graph.inputs or len(scalars) != graph.lifted:
        raise DeviceError("the model does not fit its NEFF", "compile the model again")
    known = {*graph.outputs, *graph.inputs}
    try:
        for view in (*inputs, *results):
            check_view(graph, view)
        fits = all(view.slot in known for view in results)
    except (IndexError, ValueError) as error:
        if is_of_handler(error):
            raise
        fits = False
    if not fits:
        raise DeviceError("the model's inputs or results do not fit its NEFF", "compile the model again")


def compile_exported(graph: Any, flags: Sequence[str]) -> bytes:
    """Return the NEFF of a graph; the persistent compile cache is not used.

    Raises:
        CompileError: the compiler refuses the graph or a flag.
    """
    neff = api.engine().accelerator.compile(graph, flags)
    _compiled_here.add(hashlib.sha256(neff).digest())
    return neff


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """A graph with its border.

    Args:
        graph: the graph.
        inputs: what its input slots hold, in the graph's order.
        scalars: values of its scalar inputs.
        results: where the function's results are.
    """

    graph: Graph
    inputs: tuple[RecordedInput, ...]
    scalars: tuple[float, ...]
    results: tuple[View, ...]


def export_graph(
    function: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    arguments: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    index: int = 0,
) -> ExportedGraph:
    """Record a function on a device, without running what it computes.

    The function is called until the recording needs no learning any more, because learning runs operators at once, which
    would change weights that the function writes.

    Args:
        function: takes device tensors and returns tensors.
        arguments: CPU tensors of the shapes and data types that the graph is for.
        weights: device tensors that the function reads; others that it meets become weights too.
        index: device to record on.

    Raises:
        DeviceError: an operator needs values while the function is recorded, or the function differs between calls.
    """
    for _ in range(_PASSES):
        recorded = api.engine().record_function(index, function, arguments, weights)
        if recorded is not None:
            live = tuple(sorted({view.slot for view in recorded.results}))
            graph = build_graph(recorded.trace, live, "trace")
            return ExportedGraph(graph, recorded.inputs, recorded.scalars, recorded.results)
    raise DeviceError(
        "the traced function records other operators at each call",
        "remove random choices from its Python code",
    )
