"""Runs graphs on the host: one call at a time, or a whole graph as generated straight-line Python.

The executable names every host tensor, calls torch's CPU kernels in the order of the graph and drops each buffer after its
last use. It is generated from the graph alone, never from stored code, so a NEFF stays data.
"""

# ruff: noqa: S102, SLF001
# Torch's signatures and private API.

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from itertools import chain
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.graph import Arg, Graph, GraphError, Lifted, Node, Symbol, View, reads
from neurontools.xla.geometry import layout_geometry, view_of
from neurontools.xla.graph_values import geometry_from, load_symbol, view_from
from neurontools.xla.operators import Operator, find_overload, function_of, operator_of
from neurontools.xla.shared_code import SharedCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from neurontools.xla.accelerator import Executable
    from neurontools.xla.core_arithmetic import DeviceNumerics

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


def is_host_execution() -> bool:
    """Return whether CPU operators skip autograd already, as below the kernels of autograd, and need no context."""
    skipped: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(_KEYS.AutogradCPU)
    return skipped and not torch.is_inference_mode_enabled()


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


_FEWEST_CALLS_THAT_SHARE = 500  # a smaller graph is compiled in no time, and its steps are short
_LONGEST_ARGUMENT = 200  # characters of a call that is an argument of another: limits how deep they nest


class _Writer:
    """Writes the source text of an executable. Compiling it takes most of the time of a load, so the text is short."""

    def __init__(self, graph: Graph, input_layouts: Sequence[int], numerics: DeviceNumerics | None) -> None:
        self.constants: dict[str, Any] = {"view_of": view_of}
        self._numerics = numerics
        self._graph = graph
        self._code = SharedCode(shares=len(graph.nodes) >= _FEWEST_CALLS_THAT_SHARE)
        self._bases: dict[int, tuple[str, View]] = {}
        self._names: dict[View, str] = {}
        self._names_of_slot: dict[int, list[str]] = {}
        self._unused_names: list[str] = []
        self._dying: list[str] = []
        self._name_count = 0
        self._constant_names: dict[Any, str] = {}
        self._operators: dict[str, tuple[Operator, str]] = {}
        self._reads = [reads(call) for call in graph.nodes]
        self._uses = Counter(chain.from_iterable(self._reads))
        self._last_use = _last_uses(graph, self._reads)
        for slot, layout_id in zip(graph.inputs, input_layouts, strict=True):
            self._bases[slot] = (f"$s{slot}", view_from(slot, layout_geometry(layout_id)))

    def text(self) -> str:
        inputs = [f"$s{slot}" for slot in self._graph.inputs]
        scalars = [f"$x{number}" for number in range(self._graph.lifted)]
        self._code.bind(inputs)
        unused: list[int] = []
        for position, call in enumerate(self._graph.nodes):
            unused += self._last_use.get(position, ())
            self._dying = self._names_in(unused) if unused else []
            made = [slot for slot in unused if slot not in self._bases]
            if self._call(call, position):
                dropped = self._dying + self._names_in(made) if made else self._dying
                self._unused_names += dropped
                self._code.finish_call(dropped)
                unused = []
        given = set(self._graph.inputs)
        results = [self._bases[slot][0] for slot in self._graph.outputs if slot not in given]
        head = [
            f"({''.join(f'{name},' for name in names)})={source}"
            for names, source in ((inputs, "hosts"), (scalars, "scalars"))
            if names
        ]
        returned = f"({''.join(f'{name},' for name in results)})"
        return self._code.text("run", "hosts,scalars", head, returned)

    def _call(self, call: Node, position: int) -> bool:
        """Write a call; return whether it is written, not an argument of the next one."""
        operator, function = self._function(call)
        write = self._argument
        arguments = [write(arg) for arg in call.args]
        if call.kwargs:
            arguments += [f"{name}={write(arg)}" for name, arg in call.kwargs]
        expression = f"{function}({','.join(arguments)})"
        if operator.returns_parameter >= 0 or not call.results:
            self._code.write(expression)
            return True
        if operator.single and self._pass_on(call.results[0], position, expression):
            return False
        targets = [self._result(view, position) for position, view in enumerate(call.results)]
        line = f"{','.join(targets)}{'' if operator.single else ','}={expression}"
        self._code.write(line, [name for name in targets if name[0] == "$"])
        return True

    def _function(self, call: Node) -> tuple[Operator, str]:
        """Return an operator and the name of the function that runs this call of it."""
        known = self._operators.get(call.op)
        if known is None:
            overload = overload_of(call)
            operator = operator_of(overload)
            known = self._operators[call.op] = operator, self._constant(overload, function_of(overload))
        operator, name = known
        if self._numerics is None:
            return known
        function = self._numerics.bind(operator, call)
        return operator, name if function is operator.overload._op else self._constant(function, function)

    def _result(self, view: View | None, position: int) -> str:
        if view is None or view.slot in self._bases:
            return f"_{position}"
        # A result takes the name of an operand that is read for the last time: then that needs no "del".
        name = self._dying.pop() if self._dying else self._new_name()
        self._bases[view.slot] = (name, view)
        return name

    def _pass_on(self, result: View | None, position: int, expression: str) -> bool:
        """Let the next call have the expression as its argument if no other reads the result: that saves a name."""
        if result is None or result.slot in self._bases or len(expression) > _LONGEST_ARGUMENT:
            return False
        if result.slot not in self._last_use.get(position + 1, ()):
            return False
        if sum(view.slot == result.slot for view in self._reads[position + 1]) != 1:
            return False
        self._bases[result.slot] = (expression, result)
        return True

    def _argument(self, arg: Arg) -> str:
        if isinstance(arg, View):
            return self._view(arg)
        if isinstance(arg, Lifted):
            return f"$x{arg.index}"
        if isinstance(arg, tuple):
            return self._list(arg)
        if isinstance(arg, float):
            return self._constant(("float", repr(arg)), arg)
        if isinstance(arg, Symbol):
            return self._constant(arg, load_symbol(arg))
        if isinstance(arg, str):
            return self._constant(("text", arg), arg)
        return repr(arg)

    def _list(self, items: tuple[Arg, ...]) -> str:
        if all(item is None or isinstance(item, bool | int | float | str) for item in items):
            return self._constant(("list", repr(items)), list(items))
        return f"[{','.join(map(self._argument, items))}]"

    def _view(self, view: View) -> str:
        base, whole = self._bases[view.slot]
        if whole == view:
            return base
        name = self._names.get(view)
        if name is not None:
            return name
        if _is_transposed(view, whole):
            made = f"{base}.t()"  # half as long as as_strided
        elif whole.dtype == view.dtype:
            key = view.shape, view.strides, view.offset
            made = f"{self._constant(key, methodcaller('as_strided', *key))}({base})"
        else:
            geometry = geometry_from(view)
            made = f"view_of({base},{self._constant(geometry, geometry)})"
        if self._uses[view] == 1:
            return made
        name = self._names[view] = self._new_name()
        self._names_of_slot.setdefault(view.slot, []).append(name)
        self._code.write(f"{name}={made}", (name,))
        return name

    def _constant(self, key: Any, value: Any) -> str:
        name = self._constant_names.get(key)
        if name is None:
            name = self._constant_names[key] = f"c{len(self._constant_names)}"
            self.constants[name] = value
        return name

    def _names_in(self, slots: Sequence[int]) -> list[str]:
        """Return the names of slots and of their views; an argument of a call has none."""
        names = [name for slot in slots for name in self._names_of_slot.get(slot, ())]
        bases = [self._bases[slot][0] for slot in slots if slot in self._bases]
        return names + [name for name in bases if name[1:].isalnum()]

    def _new_name(self) -> str:
        if self._unused_names:
            return self._unused_names.pop()
        self._name_count += 1
        return f"$t{self._name_count}"


def _is_transposed(view: View, matrix: View) -> bool:
    return (
        len(view.shape) == 2
        and (view.dtype, view.shape, view.strides, view.offset)
        == (matrix.dtype, matrix.shape[::-1], matrix.strides[::-1], matrix.offset)
    )  # fmt: skip


def last_use_of_slots(
    calls: Sequence[Node], read: Iterable[Sequence[View]] | None = None
) -> dict[int, list[int]]:
    """Return the slots that calls use for the last time, by the position of the call.

    Args:
        calls: the calls.
        read: the views that each of them reads, if they are known.
    """
    last: dict[int, int] = {}
    for position, (call, arguments) in enumerate(
        zip(calls, map(reads, calls) if read is None else read, strict=True)
    ):
        for view in arguments:
            last[view.slot] = position
        for result in call.results:
            if result is not None:
                last[result.slot] = position
    used: dict[int, list[int]] = {}
    for slot, position in last.items():
        used.setdefault(position, []).append(slot)
    return used


def _last_uses(graph: Graph, read: Iterable[Sequence[View]]) -> dict[int, list[int]]:
    kept = set(graph.outputs)
    used = last_use_of_slots(graph.nodes, read).items()
    return {position: [slot for slot in slots if slot not in kept] for position, slots in used}
