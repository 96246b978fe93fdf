"""Record a torch program on the meta device as a graph: what the device would be asked to do, without values.

`neurontools` records on its own devices; this is the least that gives graphs of models that no machine here could hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from neurontools.compiler.graph import Graph, Node, Slot, Symbol, View
from neurontools.compiler.work import numel

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.graph import Arg

_NO_CALL = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::detach"})
_ACTIVE: list[MetaRecording] = []


def record(function: Callable[..., Any], *arguments: Any) -> Graph:
    """Return the graph of a function of meta tensors; its results and what it changes are outputs."""
    recording = MetaRecording()
    _ACTIVE.append(recording)
    try:
        with recording:
            results = function(*arguments)
    finally:
        _ACTIVE.pop()
    return recording.graph(results)


class MetaRecording(TorchDispatchMode):
    """The calls of a program on meta tensors, whose storages are slots."""

    def __init__(self) -> None:
        super().__init__()
        self._slots: list[Slot] = []
        self._slot_of: dict[int, int] = {}
        self._kept: list[Any] = []  # storages, so that none is freed and its number used again
        self._inputs: list[int] = []
        self._nodes: list[Node] = []
        self._changed: dict[int, None] = {}

    def graph(self, results: Any) -> Graph:
        """Return what is recorded."""
        outputs = [self._slot(tensor) for tensor in _tensors(results)]
        outputs += [slot for slot in self._changed if slot in set(self._inputs)]
        return Graph(
            tuple(self._slots), tuple(self._inputs), 0, tuple(self._nodes), tuple(dict.fromkeys(outputs))
        )

    def collective(self, op: str, tensor: torch.Tensor, result: torch.Tensor, groups: str) -> None:
        """Add an exchange between workers."""
        source = self._view(tensor)
        if result is tensor:
            arguments: tuple[Arg, ...] = ((source,), "sum", 1.0, groups)
            self._nodes.append(Node(f"neurontools.{op}.default", arguments, (), ()))
        else:
            made = self._view(result, is_new=True)
            self._nodes.append(Node(f"neurontools.{op}.default", (source, groups), (), (made,)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema, kwargs = func._schema, kwargs or {}
        outcome = func(*args, **kwargs)
        if func.is_view or schema.name in _NO_CALL:
            return outcome
        taken = tuple(self._argument(value) for value in args)
        named = tuple(
            (name, self._argument(value))
            for name, value in kwargs.items()
            if name in {"dtype", "attn_mask", "value"}
        )
        is_changed = any(
            argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
        )
        made = tuple(
            self._view(tensor, is_new=not is_changed) if isinstance(tensor, torch.Tensor) else None
            for tensor in (outcome if isinstance(outcome, (tuple, list)) else (outcome,))
        )
        if is_changed:
            self._changed.update(dict.fromkeys(view.slot for view in made if view is not None))
        self._nodes.append(Node(str(func), taken, named, made))
        return outcome

    def _argument(self, value: Any) -> Arg:
        if isinstance(value, torch.Tensor):
            return self._view(value)
        if isinstance(value, (list, tuple)):
            return tuple(self._argument(item) for item in value)
        if isinstance(value, torch.dtype):
            return Symbol("dtype", str(value).removeprefix("torch."))
        return value if isinstance(value, (int, float, bool, str)) else None

    def _slot(self, tensor: torch.Tensor, *, is_new: bool = False) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._slot_of:
            self._slot_of[key] = len(self._slots)
            self._kept.append(storage)
            self._slots.append(Slot(storage.nbytes()))
            if not is_new:
                self._inputs.append(self._slot_of[key])
        return self._slot_of[key]

    def _view(self, tensor: torch.Tensor, *, is_new: bool = False) -> View:
        slot, name = self._slot(tensor, is_new=is_new), str(tensor.dtype).removeprefix("torch.")
        return View(slot, name, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())


def exchange(op: str, tensor: torch.Tensor, workers: int, *, groups: str = "") -> torch.Tensor:
    """Record an exchange between the first workers: `all_reduce_`, or `all_gather` or `reduce_scatter` of rows."""
    text = groups or f"{{{{{','.join(map(str, range(workers)))}}}}}"
    result = tensor
    if op != "all_reduce_":
        rows = tensor.shape[0] * workers if op == "all_gather" else tensor.shape[0] // workers
        with _Unrecorded():
            result = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
    _ACTIVE[-1].collective(op, tensor, result, text)
    return result


class _Unrecorded(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def input_bytes(graph: Graph) -> int:
    """Return the bytes that a graph must read: inputs of its calls, of tables only the rows that are gathered."""
    inputs, sizes = set(graph.inputs), {}
    for node in graph.nodes:
        if node.op.startswith(("aten.embedding", "aten.index_copy", "neurontools.")):
            continue
        for arg in node.args:
            if isinstance(arg, View) and arg.slot in inputs:
                sizes[arg.slot] = max(
                    sizes.get(arg.slot, 0), min(graph.slots[arg.slot].nbytes, numel(arg) * _ITEM[arg.dtype])
                )
    return sum(sizes.values())


_ITEM = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int64": 8, "int32": 4, "bool": 1}


def with_weights(graph: Graph, dtype: str) -> Graph:
    """Return a graph whose weights (second factors that are inputs) are stored in another type."""
    inputs, slots = set(graph.inputs), list(graph.slots)
    nodes = []
    for node in graph.nodes:
        right = node.args[-1] if node.op.startswith(("aten.mm", "aten.addmm")) else None
        if isinstance(right, View) and right.slot in inputs:
            slots[right.slot] = Slot(numel(right) * _ITEM[dtype])
            node = replace(node, args=(*node.args[:-1], replace(right, dtype=dtype)))  # noqa: PLW2901
        nodes.append(node)
    return graph.with_calls(slots, nodes)
