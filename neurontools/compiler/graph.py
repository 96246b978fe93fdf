"""The canonical graph: what the lazy device records, what is hashed, and what a NEFF carries.

A graph works on *slots*. A slot is one device buffer; tensors are views of slots (shape, strides, offset), so aliasing
and in-place operators keep their meaning. Operators are named as torch names them (`aten.mm.default`). Source lines
travel with the nodes but do not take part in the hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

from neurontools.errors import NeuronToolsError

SCHEMA = 1
_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode
_LARGEST = 2**63 - 1  # of sizes, strides and offsets


class GraphError(NeuronToolsError):
    """Stored bytes are not a graph of this schema."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A device buffer of `nbytes`."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: a strided window on a slot. `strides` and `offset` count elements of `dtype` ("float32", ...)."""

    slot: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Lifted:
    """A Python number that became an input of the graph, so that its value does not force a new compile."""

    index: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named constant of torch; `kind` is dtype, layout, memory_format or device."""

    kind: str
    name: str


Arg = View | Lifted | Symbol | None | bool | int | float | str | tuple["Arg", ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call. `results` are the views it returns; None where it returns no tensor."""

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    results: tuple[View | None, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A straight line of operator calls.

    Args:
        slots: every buffer, indexed by slot number.
        inputs: slots that hold data when the graph starts, in binding order.
        lifted: number of scalar inputs.
        nodes: the calls in order.
        outputs: slots that somebody can still see when the graph ends.
        libraries: sha256 of every native library whose operators the graph calls.
        cut: what ended the recording, as `cause at file:line`; like source lines no part of the hash.
    """

    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    lifted: int
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    libraries: tuple[str, ...] = ()
    cut: str = ""

    _digest: str = field(default="", init=False, repr=False, compare=False)
    _stored: bytes = field(default=b"", init=False, repr=False, compare=False)

    def to_bytes(self) -> bytes:
        """Return the stored form: canonical JSON, the same for equal graphs."""
        if not self._stored:
            self._serialize()
        return self._stored

    def digest(self) -> str:
        """Return the sha256 (hex) that identifies the graph: everything but source lines and cut."""
        if not self._digest:
            self._serialize()
        return self._digest

    def _serialize(self) -> None:
        """Set both forms: a compile needs both, and most of the work is the same."""
        hashed, stored = _dump(self)
        object.__setattr__(self, "_digest", hashlib.sha256(hashed).hexdigest())
        object.__setattr__(self, "_stored", stored)

    def module_hash(self) -> str:
        """Return the decimal uint64 that names the MODULE directory."""
        return module_hash_of(self.digest())

    def to_text(self) -> str:
        """Return one line per operator, for people."""
        return "".join(_line(node) + "\n" for node in self.nodes)


def module_hash_of(digest: str) -> str:
    """Return the decimal uint64 that stands for a graph's digest in directory names."""
    return str(int(digest[:16], 16))


def graph_from_bytes(data: bytes) -> Graph:
    """Return the graph that `to_bytes` stored, checked.

    Raises:
        GraphError: the bytes are damaged, of another schema, or refer to slots that do not exist.
    """
    try:
        stored = json.loads(data)
        if stored["schema"] != SCHEMA:
            raise GraphError(f"graph schema {stored['schema']} is not supported (supported: {SCHEMA})")
        graph = Graph(
            slots=tuple(Slot(int(nbytes)) for nbytes in stored["slots"]),
            inputs=tuple(int(slot) for slot in stored["inputs"]),
            lifted=int(stored["lifted"]),
            nodes=tuple(_node(node) for node in stored["nodes"]),
            outputs=tuple(int(slot) for slot in stored["outputs"]),
            libraries=tuple(str(library) for library in stored["libraries"]),
            cut=str(stored.get("cut", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise GraphError(f"not a graph: {type(error).__name__}: {error}") from error
    _check(graph)
    return graph


def views(arg: Arg) -> tuple[View, ...]:
    """Return the views in an argument, lists included, in order."""
    found: list[View] = []
    _collect(arg, found)
    return tuple(found)


def reads(node: Node) -> tuple[View, ...]:
    """Return every view among a node's arguments."""
    found: list[View] = []
    _collect(node.args, found)
    for _, value in node.kwargs:
        _collect(value, found)
    return tuple(found)


def _collect(arg: Arg, found: list[View]) -> None:
    if arg.__class__ is View:
        found.append(arg)
    elif isinstance(arg, tuple):
        for item in arg:
            _collect(item, found)


def _dump(graph: Graph) -> tuple[bytes, bytes]:
    """Return canonical JSON without source lines and cut, and with them."""
    nodes = [_encode(_store_node(node)) for node in graph.nodes]
    # "source" comes last in the order of the keys, and "cut" first.
    located = [
        f'{text[:-1]},"source":{_encode(node.source)}}}' if node.source else text
        for text, node in zip(nodes, graph.nodes, strict=True)
    ]
    head = _encode({"inputs": graph.inputs, "libraries": graph.libraries, "lifted": graph.lifted})[1:-1]
    slots = _encode([slot.nbytes for slot in graph.slots])
    tail = f'"outputs":{_encode(graph.outputs)},"schema":{SCHEMA},"slots":{slots}}}'
    cut = f'"cut":{_encode(graph.cut)},' if graph.cut else ""
    hashed = f'{{{head},"nodes":[{",".join(nodes)}],{tail}'
    return hashed.encode(), f'{{{cut}{head},"nodes":[{",".join(located)}],{tail}'.encode()


def _store_node(node: Node) -> dict[str, Any]:
    return {
        "op": node.op,
        "args": [_store(arg) for arg in node.args],
        "kwargs": [[name, _store(arg)] for name, arg in node.kwargs],
        "results": [_store(result) for result in node.results],
    }


def _store(arg: Arg) -> Any:
    match arg:
        case View():
            return {"view": [arg.slot, arg.dtype, list(arg.shape), list(arg.strides), arg.offset]}
        case Lifted():
            return {"lifted": arg.index}
        case Symbol():
            return {arg.kind: arg.name}
        case tuple():
            return [_store(item) for item in arg]
        case float() if not math.isfinite(arg):
            return {"float": repr(arg)}
        case _:
            return arg


def _load(stored: Any) -> Arg:
    if isinstance(stored, list):
        return tuple(_load(item) for item in stored)
    if not isinstance(stored, dict):
        if stored is None or isinstance(stored, bool | int | float | str):
            return stored
        raise TypeError(f"unexpected {type(stored).__name__}")
    ((kind, value),) = stored.items()
    match kind:
        case "view":
            slot, dtype, shape, strides, offset = value
            return View(
                int(slot),
                str(dtype),
                tuple(map(int, shape)),
                tuple(map(int, strides)),
                int(offset),
            )
        case "lifted":
            return Lifted(int(value))
        case "float":
            return float(value)
        case "dtype" | "layout" | "memory_format" | "device":
            return Symbol(kind, str(value))
        case _:
            raise ValueError(f"unknown argument kind {kind!r}")


def _node(stored: dict[str, Any]) -> Node:
    results: list[View | None] = []
    for result in stored["results"]:
        view = _load(result)
        if view is not None and not isinstance(view, View):
            raise TypeError("a result is a view or null")
        results.append(view)
    return Node(
        op=str(stored["op"]),
        args=tuple(_load(arg) for arg in stored["args"]),
        kwargs=tuple((str(name), _load(arg)) for name, arg in stored["kwargs"]),
        results=tuple(results),
        source=str(stored.get("source", "")),
    )


def _check(graph: Graph) -> None:
    count = len(graph.slots)
    used = [*graph.inputs, *graph.outputs]
    seen = [view for node in graph.nodes for view in reads(node)]
    seen += [view for node in graph.nodes for view in node.results if view is not None]
    used += [view.slot for view in seen]
    if any(not 0 <= slot < count for slot in used):
        raise GraphError(f"a node refers to a slot outside 0..{count - 1}")
    if any(not 0 <= slot.nbytes <= _LARGEST for slot in graph.slots) or any(map(_is_impossible, seen)):
        raise GraphError("a size, stride or offset is out of range")
    lifted = [index for node in graph.nodes for index in _lifted((node.args, node.kwargs))]
    if any(not 0 <= index < graph.lifted for index in lifted):
        raise GraphError(f"a node refers to a scalar input outside 0..{graph.lifted - 1}")


def _is_impossible(view: View) -> bool:
    numbers = (view.offset, *view.shape, *view.strides)
    is_out_of_range = min(numbers) < 0 or max(numbers) > _LARGEST or math.prod(view.shape) > _LARGEST
    return is_out_of_range or len(view.shape) != len(view.strides)


def _lifted(arg: Any) -> tuple[int, ...]:
    if isinstance(arg, Lifted):
        return (arg.index,)
    if isinstance(arg, tuple):
        return tuple(index for item in arg for index in _lifted(item))
    return ()


def _line(node: Node) -> str:
    results = ", ".join("-" if view is None else _show(view) for view in node.results)
    arguments = [_show(arg) for arg in node.args] + [f"{name}={_show(arg)}" for name, arg in node.kwargs]
    return f"{results} = {node.op}({', '.join(arguments)})" + (f"  # {node.source}" if node.source else "")


def _show(arg: Arg) -> str:
    match arg:
        case View():
            return f"%{arg.slot}:{arg.dtype}[{','.join(map(str, arg.shape))}]"
        case Lifted():
            return f"${arg.index}"
        case Symbol():
            return arg.name
        case tuple():
            return "[" + ", ".join(_show(item) for item in arg) + "]"
        case _:
            return repr(arg)
