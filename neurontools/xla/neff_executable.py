"""A NEFF that is executed on tensors of the CPU, outside any recording, or by itself on given or zero inputs."""

from __future__ import annotations

import hashlib
import io
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from neurontools.base.interrupts import is_of_handler
from neurontools.compiler.graph import Graph, Lifted, View, reads
from neurontools.compiler.neff import parse
from neurontools.compiler.work import written
from neurontools.errors import NeuronToolsError
from neurontools.runtime.host_activity import note_execution, report_step
from neurontools.runtime.status import NrtError
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError, LoadedGraph
from neurontools.xla.core_arithmetic import DeviceNumerics, numerics_of
from neurontools.xla.execution import generate, host_execution, last_use_of_slots, overload_of, run_call
from neurontools.xla.fallback import has_pending_bits
from neurontools.xla.geometry import geometry_of, intern_layout, view_of
from neurontools.xla.graph_values import geometry_from
from neurontools.xla.neff_checks import check_graph, check_view, is_made, sound_results
from neurontools.xla.operators import operator_of
from neurontools.xla.program import build_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neurontools.xla.trie import RecordedInput


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


def compile_exported(graph: Any, flags: Sequence[str], *, uses_cache: bool = False) -> bytes:
    """Return the NEFF of a graph.

    A NEFF from the persistent compile cache counts as one of this process if it holds exactly this graph and no library.

    Raises:
        CompileError: the compiler refuses the graph or a flag.
    """
    accelerator = api.engine().accelerator
    if uses_cache:
        neff, is_cached = accelerator.find_or_compile(graph, flags)
        if is_cached:
            cached = parse(neff, validate_hash=True)
            if cached.libraries or cached.graph.digest() != graph.digest():
                return neff
    else:
        neff = accelerator.compile(graph, flags)
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


_SHOWN = 8


class NeffRunError(NeuronToolsError):
    """A NEFF cannot be executed with these inputs, or its results differ."""


@dataclass(frozen=True, slots=True)
class NeffRun:
    """What the executions of a NEFF gave.

    Args:
        results: the outputs of the last execution by name, as `neuron-packager` lists them.
        failures: executions that failed.
    """

    results: Mapping[str, torch.Tensor]
    failures: int


def execute_neff(
    neff: bytes,
    inputs: Mapping[str, bytes],
    *,
    executions: int = 1,
    ignore_errors: bool = False,
    check_determinism: bool = False,
    name: str = "the NEFF",
) -> NeffRun:
    """Load a NEFF on the first core of this process and execute it; each execution is a step of a profile.

    Args:
        neff: its bytes.
        inputs: contents of inputs by name; the others are zeros, and scalar inputs are 1.
        executions: how often.
        ignore_errors: go on after an execution that fails.
        check_determinism: compare the results of all executions.
        name: what it is called in messages.

    Raises:
        NeffRunError: an input does not exist or has another size, or the results of two executions differ.
        NeuronToolsError: the NEFF is damaged, or calls what a NEFF may not call; there is no machine.
        NrtError: an execution fails.
    """
    graph = parse(neff).graph
    views = tuple(whole_view(graph, slot) for slot in graph.inputs)
    outputs = tuple(whole_view(graph, slot) for slot in graph.outputs)
    tensors = _contents(views, inputs, name)
    executable = NeffExecutable(neff, views, plain_scalars(graph), outputs, name=name)
    loaded = executable.load(0)
    failures, first = 0, None
    results: Sequence[torch.Tensor] = ()
    for number in range(1, executions + 1):
        start_ns = time.monotonic_ns()
        try:
            results = executable.execute(loaded, tensors)
        except NrtError:
            if not ignore_errors:
                raise
            failures += 1
        except NeuronToolsError:
            raise
        except Exception as error:  # torch's kernels refuse values, such as an index outside of its tensor
            if is_of_handler(error):
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise NeffRunError(
                f"{name} fails: {reason}", "give contents of its inputs that it can compute with"
            ) from error
        else:
            checksum = [zlib.crc32(_bytes(result)) for result in results]
            first = first or checksum
            if check_determinism and checksum != first:
                raise NeffRunError(
                    f"{name}: execution {number} gave other results than the first",
                    "its random numbers or custom operators depend on more than the inputs",
                )
        note_execution()
        report_step(start_ns, "execution", "")
    names = [_name(slot) for slot in graph.outputs]
    return NeffRun(dict(zip(names, results, strict=False)), failures)


def _name(slot: int) -> str:
    """Return the name of a tensor in the NEFF's own list."""
    return f"slot{slot}"


def whole_view(graph: Graph, slot: int) -> View:
    """Return a buffer as one row of the data type in which it is used first."""
    nbytes = graph.slots[slot].nbytes
    dtype = next(
        (
            view.dtype
            for node in graph.nodes
            for view in (*reads(node), *node.results)
            if view is not None and view.slot == slot
        ),
        "uint8",
    )
    return View(slot, dtype, (nbytes // getattr(torch, dtype).itemsize,), (1,), 0)


def plain_scalars(graph: Graph) -> tuple[float, ...]:
    """Return 1 for each scalar input: zeros would divide by zero where a program passes a learning rate or a count.

    It is a whole number where it meets whole numbers only, as a float would give results of another type.
    """
    scalars: list[float] = [1.0] * graph.lifted
    for node in graph.nodes:
        views = [view for view in node.results if view is not None] or reads(node)
        if views and all("int" in view.dtype or view.dtype == "bool" for view in views):
            for arg in (*node.args, *(value for _, value in node.kwargs)):
                for item in arg if isinstance(arg, tuple) else (arg,):
                    if isinstance(item, Lifted):
                        scalars[item.index] = 1
    return tuple(scalars)


def _contents(views: Sequence[View], inputs: Mapping[str, bytes], name: str) -> list[torch.Tensor]:
    names = [_name(view.slot) for view in views]
    unknown = sorted(set(inputs) - set(names))
    if unknown:
        known = f"its inputs are {', '.join(names[:_SHOWN])}" if names else "it has no inputs"
        raise NeffRunError(f"{name} has no input {unknown[0]}", known)
    found = []
    for given, view in zip(names, views, strict=True):
        tensor = torch.zeros(view.shape, dtype=getattr(torch, view.dtype))
        data = inputs.get(given)
        if data is not None:
            nbytes = tensor.numel() * tensor.itemsize
            if len(data) != nbytes:
                raise NeffRunError(
                    f"{given} of {name} takes {nbytes} bytes, the file has {len(data)}",
                    f"give raw {view.dtype} values",
                )
            tensor = torch.frombuffer(bytearray(data), dtype=tensor.dtype) if nbytes else tensor
        found.append(tensor)
    return found


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def raw_bytes(results: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Return the results as they lie in memory."""
    return {name: _bytes(tensor) for name, tensor in results.items()}


def npy_bytes(results: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Return the results as files of numpy, which has no bfloat16 and no 8-bit floats.

    Raises:
        NeffRunError: numpy does not have the data type of a result.
    """
    import numpy as np

    found = {}
    for name, tensor in results.items():
        try:
            array = tensor.detach().numpy()
        except TypeError as error:
            raise NeffRunError(
                f"numpy has no type for the {str(tensor.dtype).removeprefix('torch.')} of {name}",
                "save raw values with --save-output",
            ) from error
        file = io.BytesIO()
        np.save(file, array)
        found[name] = file.getvalue()
    return found
