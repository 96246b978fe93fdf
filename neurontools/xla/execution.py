"""Runs graphs on the host: one call at a time, or a whole graph as generated straight-line Python.

The executable names every host tensor, calls torch's CPU kernels in the order of the graph and drops each buffer after its
last use. It is generated from the graph alone, never from stored code, so a NEFF stays data.
"""

# ruff: noqa: S102, SLF001
# Torch's signatures and private API.

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.graph import Arg, Graph, GraphError, Lifted, Node, Symbol, View, reads
from neurontools.xla.geometry import Geometry, layout_geometry, view_of
from neurontools.xla.graph_values import geometry_from, load_symbol
from neurontools.xla.operators import Operator, find_overload, operator_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.xla.accelerator import Executable
    from neurontools.xla.core_arithmetic.arithmetic import DeviceNumerics

_KEYS = torch._C.DispatchKey
_WATCHERS = torch._C.DispatchKeySet(_KEYS.ADInplaceOrView)
for _key in (_KEYS.AutogradCPU, _KEYS.AutogradOther, _KEYS.AutocastCPU, _KEYS.AutogradPrivateUse1):
    _WATCHERS = _WATCHERS.add(_key)

SOURCE_NAME = "<neurontools graph>"


def host_execution() -> Any:
    """Return a context in which CPU operators skip autograd, view tracking and autocast."""
    if torch.is_inference_mode_enabled():
        return _outside_inference()
    return torch._C._ExcludeDispatchKeyGuard(_WATCHERS)


@contextmanager
def _outside_inference() -> Iterator[None]:
    with torch.inference_mode(mode=False), torch._C._ExcludeDispatchKeyGuard(_WATCHERS):
        yield


def run_call(
    operator: Operator,
    call: Node,
    hosts: Sequence[torch.Tensor | None],
    scalars: Sequence[float],
    numerics: DeviceNumerics | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Run one call on host buffers and return its results in order.

    `hosts` are the host tensors of every slot so far, `scalars` the values of the lifted scalars. `numerics` computes
    instead of torch's kernels.
    """

    def load(arg: Arg) -> Any:
        match arg:
            case View():
                host = hosts[arg.slot]
                assert host is not None
                return view_of(host, geometry_from(arg))
            case Lifted():
                return scalars[arg.index]
            case Symbol():
                return load_symbol(arg)
            case tuple():
                return [load(item) for item in arg]
        return arg

    function = operator.overload if numerics is None else numerics.bind(operator, call)
    outcome = function(*map(load, call.args), **{name: load(arg) for name, arg in call.kwargs})
    if operator.single:
        return (outcome,)
    return tuple(outcome or ())


def generate(
    graph: Graph, input_layouts: Sequence[int], numerics: DeviceNumerics | None = None
) -> Executable:
    """Return the executable of a graph.

    Args:
        graph: what it runs.
        input_layouts: the layout ids of the host tensors of its inputs.
        numerics: computes instead of torch's kernels.

    Raises:
        GraphError: the graph names an operator that this process does not have.
    """
    writer = _Writer(graph, input_layouts, numerics)
    text = writer.text()
    exec(compile(text, SOURCE_NAME, "exec"), writer.constants)
    executable: Executable = writer.constants["run"]
    return executable


def overload_of(call: Node) -> Any:
    """Return the operator overload that a call names.

    Raises:
        GraphError: it does not exist here.
    """
    namespace, _, rest = call.op.partition(".")
    overload = find_overload(f"{namespace}::{rest}")
    if overload is None:
        raise GraphError(
            f"operator {call.op} does not exist in this process",
            "load the custom-operator library that defines it",
        )
    return overload


class _Writer:
    def __init__(self, graph: Graph, input_layouts: Sequence[int], numerics: DeviceNumerics | None) -> None:
        self.constants: dict[str, Any] = {"as_strided": torch.as_strided, "view_of": view_of}
        self._numerics = numerics
        self._graph = graph
        self._names: dict[View, str] = {}
        self._bases: dict[int, tuple[str, Geometry]] = {}
        self._lines: list[str] = []
        self._constant_names: dict[Any, str] = {}
        self._last_use = _last_uses(graph)
        for slot, layout_id in zip(graph.inputs, input_layouts, strict=True):
            self._bases[slot] = (f"s{slot}", layout_geometry(layout_id))

    def text(self) -> str:
        inputs = "".join(f"s{slot}, " for slot in self._graph.inputs)
        if inputs:
            self._lines.append(f"({inputs}) = hosts")
        for position, call in enumerate(self._graph.nodes):
            self._call(call)
            self._drop(position)
        made = [slot for slot in self._graph.outputs if slot not in set(self._graph.inputs)]
        self._lines.append("return (" + "".join(f"{self._bases[slot][0]}, " for slot in made) + ")")
        return "def run(hosts, scalars):\n" + "".join(f"    {line}\n" for line in self._lines)

    def _call(self, call: Node) -> None:
        overload = overload_of(call)
        operator = operator_of(overload)
        arguments = [self._argument(arg) for arg in call.args]
        arguments += [f"{name}={self._argument(arg)}" for name, arg in call.kwargs]
        function = overload._op if self._numerics is None else self._numerics.bind(operator, call)
        expression = f"{self._constant(function)}({', '.join(arguments)})"
        if operator.returns_parameter >= 0 or not call.results:
            self._lines.append(expression)
            return
        targets = [self._result(view, position) for position, view in enumerate(call.results)]
        self._lines.append(f"{', '.join(targets)}{'' if operator.single else ','} = {expression}")

    def _result(self, view: View | None, position: int) -> str:
        if view is None or view.slot in self._bases:
            return f"_{position}"
        name = f"s{view.slot}"
        self._bases[view.slot] = (name, geometry_from(view))
        return name

    def _argument(self, arg: Arg) -> str:
        match arg:
            case View():
                return self._view(arg)
            case Lifted():
                return f"scalars[{arg.index}]"
            case Symbol():
                return self._constant(load_symbol(arg))
            case tuple():
                return f"[{', '.join(self._argument(item) for item in arg)}]"
            case float():
                return f"float({str(arg)!r})"
        return repr(arg)

    def _view(self, view: View) -> str:
        base, geometry = self._bases[view.slot]
        if geometry == geometry_from(view):
            return base
        name = self._names.get(view)
        if name is None:
            name = self._names[view] = f"v{len(self._lines)}_{view.slot}"
            if geometry[0] == geometry_from(view)[0]:
                made = f"as_strided({base}, {view.shape}, {view.strides}, {view.offset})"
            else:
                made = f"view_of({base}, {self._constant(geometry_from(view))})"
            self._lines.append(f"{name} = {made}")
        return name

    def _constant(self, value: Any) -> str:
        name = self._constant_names.get(value)
        if name is None:
            name = self._constant_names[value] = f"c{len(self._constant_names)}"
            self.constants[name] = value
        return name

    def _drop(self, position: int) -> None:
        slots = self._last_use.get(position, ())
        names = [name for view, name in self._names.items() if view.slot in slots]
        names += [self._bases[slot][0] for slot in slots if slot in self._bases]
        for view in [view for view in self._names if view.slot in slots]:
            del self._names[view]
        if names:
            self._lines.append(f"del {', '.join(names)}")


def last_use_of_slots(calls: Sequence[Node]) -> dict[int, list[int]]:
    """Return the slots that calls use for the last time, by the position of the call."""
    last: dict[int, int] = {}
    for position, call in enumerate(calls):
        made = (view for view in call.results if view is not None)
        last.update((view.slot, position) for view in (*reads(call), *made))
    used: dict[int, list[int]] = {}
    for slot, position in last.items():
        used.setdefault(position, []).append(slot)
    return used


def _last_uses(graph: Graph) -> dict[int, list[int]]:
    kept = {*graph.outputs, *graph.inputs}
    used = last_use_of_slots(graph.nodes).items()
    return {position: [slot for slot in slots if slot not in kept] for position, slots in used}
