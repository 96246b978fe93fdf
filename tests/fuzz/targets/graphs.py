"""Graphs of NEFFs that another process compiled: recorded ones with other arguments, tensors, operators and wiring.

An input is the seed of a graph: every input gives one that the container's digests would not refuse. Most are single calls with results as torch's meta kernels make them, because whole graphs rarely get as far as a kernel. A result that
is not what the graph states is a finding, and so is an access outside of a tensor: its memory has guard pages.
"""

from __future__ import annotations

import functools
from random import Random
from typing import TYPE_CHECKING

from tests.fuzz.mutation import Format
from tests.fuzz.target import Target

if TYPE_CHECKING:
    import torch

    from neurontools.compiler.graph import Arg, Graph, Node, View

_NUMBERS = (
    *(0, 1, -1, 2, 3, 4, 7, 8, 64, 99, 255, 1000, 2**15, 2**20, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62),
    *(2**63 - 1, -(2**63), 10**15, 10**30),
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, 1e38, -1e38, float("nan"), float("inf"), -float("inf"))
_DTYPES = (
    *(
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "complex64",
    ),
    *("float8_e4m3fn", "uint16", "quint8", "long", "load"),
)
_TEXTS = (
    "none",
    "tanh",
    "trunc",
    "floor",
    "mean",
    "sum",
    "prod",
    "amax",
    "reduced",
    "{{0}}",
    "{{0,1}}",
    "left",
    "",
)
_SYMBOLS = (
    *(("dtype", name) for name in _DTYPES),
    *(("layout", name) for name in ("strided", "sparse_coo", "_mkldnn")),
    *(("memory_format", name) for name in ("channels_last", "preserve_format", "contiguous_format")),
    ("device", "meta"),
)
_SINGLE_CALL = 0.8
_UNCHANGED = bytes(range(64))
_LARGEST_BUFFER = 1 << 16


@functools.cache
def _graphs() -> tuple[Graph, ...]:
    import torch

    from neurontools.xla import api
    from neurontools.xla.distributed import collectives
    from tests.fuzz.recorded_graphs import listed_graphs
    from tests.xla.conftest import InMemoryAccelerator

    accelerator = InMemoryAccelerator()
    api.activate(open_accelerator=lambda: accelerator)
    collectives.define()
    torch.default_generator.manual_seed(0)
    torch.set_num_threads(1)
    return tuple(listed_graphs(accelerator))


@functools.cache
def _calls() -> tuple[tuple[Graph, Node], ...]:
    """Return a call of each operator with each kind of arguments, and the graph that it is from."""
    from neurontools.compiler.graph import reads

    found = {
        (node.op, tuple((len(view.shape), view.dtype) for view in reads(node))): (graph, node)
        for graph in _graphs()
        for node in graph.nodes
    }
    return tuple(found.values())


@functools.cache
def _operators() -> tuple[str, ...]:
    import torch

    from neurontools.xla.neff_kernels import ATEN, COLLECTIVES

    spaces = [(torch.ops.aten, name) for name in ATEN] + [
        (torch.ops.neurontools, name) for name in COLLECTIVES
    ]
    return tuple(
        f"{space.name}.{name}.{overload}"
        for space, plain in spaces
        for name in (plain, f"{plain}_", f"_foreach_{plain}_")
        if hasattr(space, name)
        for overload in getattr(space, name).overloads()
    )


class _Mutation:
    """Changes of a graph, chosen by a seed."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def graph(self) -> Graph:
        """Return a changed graph."""
        if self.random.random() < _SINGLE_CALL:
            return self.single_call()
        graph = self.random.choice(_graphs())
        for _ in range(self.random.choice((1, 1, 2, 3))):
            graph = self.changed(graph)
        return graph

    def changed(self, graph: Graph) -> Graph:
        """Return a graph with a changed call, buffer or border."""
        from neurontools.compiler.graph import Graph, Slot

        slots, nodes, outputs = list(graph.slots), list(graph.nodes), list(graph.outputs)
        place = self.random.randrange(len(nodes))
        match self.random.randrange(8):
            case 0:
                slots[self.random.randrange(len(slots))] = Slot(
                    abs(self.number(slots[0].nbytes)) % _LARGEST_BUFFER
                )
            case 1 if len(nodes) > 1:
                del nodes[place]
            case 2:
                other = self.random.randrange(len(nodes))
                nodes[place], nodes[other] = nodes[other], nodes[place]
            case 3 if outputs:
                outputs[self.random.randrange(len(outputs))] = self.random.randrange(len(slots))
            case _:
                nodes[place] = self.call(nodes[place], len(slots))
        return Graph(tuple(slots), graph.inputs, graph.lifted, tuple(nodes), tuple(dict.fromkeys(outputs)))

    def call(self, node: Node, slot_count: int) -> Node:
        """Return a call with something changed."""
        from neurontools.compiler.graph import Node

        op, args, kwargs, results = node.op, list(node.args), list(node.kwargs), list(node.results)
        match self.random.randrange(10):
            case 0:
                op = self.operator(node.op)
            case 1 if results:
                place = self.random.randrange(len(results))
                view = results[place]
                results[place] = view if view is None else self.view(view, slot_count)
            case 2 if args:
                del args[self.random.randrange(len(args))]
            case 3:
                args.insert(self.random.randrange(len(args) + 1), self.random.choice(_NUMBERS))
            case 4 if kwargs:
                place = self.random.randrange(len(kwargs))
                kwargs[place] = kwargs[place][0], self.argument(kwargs[place][1], slot_count)
            case _ if args:
                place = self.random.randrange(len(args))
                args[place] = self.argument(args[place], slot_count)
        return Node(op, tuple(args), tuple(kwargs), tuple(results))

    def operator(self, op: str) -> str:
        """Return another operator; mostly one of the same family of names."""
        similar = [name for name in _operators() if name.split(".")[1][:4] == op.split(".")[1][:4]]
        return self.random.choice(similar if similar and self.random.random() < 0.6 else _operators())

    def argument(self, arg: Arg, slot_count: int) -> Arg:
        """Return another argument, mostly of the same kind."""
        from neurontools.compiler.graph import Symbol, View

        if self.random.random() < 0.05:
            return self.random.choice((None, True, 0, -1, "none", (), Symbol("dtype", "float32"), 1.5))
        if isinstance(arg, View):
            return self.view(arg, slot_count)
        if isinstance(arg, bool):
            return not arg
        if isinstance(arg, int):
            return self.number(arg)
        if isinstance(arg, float):
            return self.random.choice(_FLOATS)
        if isinstance(arg, str):
            return self.random.choice(_TEXTS)
        if isinstance(arg, Symbol):
            return self.random.choice(
                (Symbol(*self.random.choice(_SYMBOLS)), self.random.choice((99, -1, 4, 11)))
            )
        if not isinstance(arg, tuple) or not arg:
            return self.random.choice((None, 1, (1,), Symbol(*self.random.choice(_SYMBOLS))))
        items = list(arg)
        place = self.random.randrange(len(items))
        match self.random.randrange(5):
            case 0:
                del items[place]
            case 1:
                items.append(items[place])
            case _:
                items[place] = self.argument(items[place], slot_count)
        return tuple(items)

    def number(self, near: int = 1) -> int:
        """Return a number, often one near another."""
        if self.random.random() < 0.5:
            return near + self.random.choice((-2, -1, 1, 2))
        return self.random.choice(_NUMBERS)

    def view(self, view: View, slot_count: int) -> View:
        """Return another tensor."""
        from neurontools.compiler.graph import View, contiguous_strides

        slot, dtype, shape, strides, offset = (
            view.slot,
            view.dtype,
            list(view.shape),
            list(view.strides),
            view.offset,
        )
        place = self.random.randrange(len(shape)) if shape else 0
        match self.random.randrange(9):
            case 0:
                slot = self.random.randrange(max(slot_count, 1))
            case 1:
                dtype = self.random.choice(_DTYPES)
            case 2 if shape:
                strides[place] = self.random.choice((0, 1, 2, strides[place] + 1, self.number()))
            case 3:
                offset = self.random.choice((0, 1, 2, self.number()))
            case 4:
                shape.insert(place, self.random.choice((0, 1, 2)))
                strides = list(contiguous_strides(tuple(shape)))
            case 5 if shape:
                del shape[place]
                strides = list(contiguous_strides(tuple(shape)))
            case 6 if shape:
                shape[place] = self.number(shape[place])
            case _ if shape:
                shape[place] = self.random.choice((0, 1, 2, shape[place] + 1, max(0, shape[place] - 1)))
                strides = list(contiguous_strides(tuple(shape)))
        return View(slot, dtype, tuple(shape), tuple(strides), offset)

    def single_call(self) -> Graph:
        """Return a graph of one changed call, with buffers that its tensors fit into, and its true results."""
        from neurontools.compiler.graph import Graph, Slot, reads

        graph, node = self.random.choice(_calls())
        for _ in range(self.random.choice((1, 1, 2, 3))):
            node = self.call(node, len(graph.slots))
        slots = list(graph.slots)
        for view in reads(node):
            slots[view.slot] = Slot(max(slots[view.slot].nbytes, self.bytes_of(view)))
        inputs = tuple(dict.fromkeys(view.slot for view in reads(node)))
        made = Graph(tuple(slots), inputs, graph.lifted, (node,), ())
        return made if self.random.random() < 0.1 else _with_true_results(made)

    def bytes_of(self, view: View) -> int:
        """Return the size of a buffer for a view: not always enough, and never much memory."""
        import torch

        dtype = getattr(torch, view.dtype, None)
        itemsize = dtype.itemsize if isinstance(dtype, torch.dtype) else 1
        steps = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
        return min(max(0, view.offset + steps + 1) * itemsize, _LARGEST_BUFFER)


def _with_true_results(graph: Graph) -> Graph:
    """Return a graph of one call that states what the meta kernel makes; as it is where that refuses the call."""
    import torch

    from neurontools.compiler.graph import Graph, Node, Slot, View
    from neurontools.errors import NeuronToolsError
    from neurontools.xla.neff_checks import true_call_results

    (node,) = graph.nodes
    try:
        made = true_call_results(graph, node, _scalars(graph))
    except (NeuronToolsError, ValueError, IndexError, AttributeError, KeyError):
        return graph
    slots, results = list(graph.slots), []
    for tensor in made if made is not None else ():
        if not isinstance(tensor, torch.Tensor):
            results.append(None)
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        results.append(View(len(slots), dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()))
        slots.append(Slot(tensor.untyped_storage().nbytes()))
    known = node.results if made is None else tuple(results)
    outputs = tuple(view.slot for view in known if view is not None) or graph.inputs[:1]
    call = Node(node.op, node.args, node.kwargs, known)
    return Graph(tuple(slots), graph.inputs, graph.lifted, (call,), outputs)


def _scalars(graph: Graph) -> tuple[float, ...]:
    from neurontools.xla.neff_executable import plain_scalars

    return plain_scalars(graph)


def _contents(view: View, random: Random) -> torch.Tensor:
    """Return a tensor with values that kernels may not expect: indices outside of tensors, the smallest integers."""
    import torch

    dtype = getattr(torch, view.dtype)
    count = view.shape[0]
    if dtype.is_floating_point or dtype.is_complex:
        values = [
            random.choice(_FLOATS) if random.random() < 0.05 else random.gauss(0, 1) for _ in range(count)
        ]
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    low = random.choice((0, 0, 0, 1, 2**62, 2**7, 2**31))
    values = [random.randrange(-low, low + 1) if low else random.randrange(4) for _ in range(count)]
    return torch.tensor(values, dtype=torch.int64).to(dtype)


def _check_graph(data: bytes) -> None:
    """Check a graph and, if that accepts it, run it."""
    import torch

    from neurontools.errors import NeuronToolsError
    from neurontools.xla.neff_checks import check_graph
    from neurontools.xla.neff_executable import whole_view

    torch.set_num_threads(1)
    random = Random(data)
    graph = random.choice(_graphs()) if data == _UNCHANGED else _Mutation(random).graph()
    try:
        inputs = tuple(whole_view(graph, slot) for slot in graph.inputs)
    except (IndexError, AttributeError) as error:  # a NEFF is read with these checks before
        raise NeuronToolsError(str(error)) from error
    check_graph(graph, inputs, _scalars(graph), "the NEFF")
    contents = [_contents(view, random) for view in inputs]
    _run(graph, inputs, contents)


def _run(graph: Graph, inputs: tuple[View, ...], contents: list[torch.Tensor]) -> None:
    """Run a graph as the first execution of a NEFF does, which compares each result, and then its executable."""
    from neurontools.errors import NeuronToolsError
    from neurontools.xla.execution import generate, host_execution
    from neurontools.xla.geometry import intern_layout
    from neurontools.xla.graph_values import geometry_from
    from neurontools.xla.neff_executable import execute_checked

    layouts = [intern_layout(graph.slots[view.slot].nbytes, geometry_from(view)) for view in inputs]
    run = generate(graph, layouts)
    with host_execution():
        try:
            execute_checked(graph, [tensor.clone() for tensor in contents], _scalars(graph), "the NEFF")
        except (RuntimeError, IndexError, ValueError, TypeError) as error:  # a kernel refuses the values
            raise NeuronToolsError(str(error)) from error
        run(contents, _scalars(graph))


TARGETS = (
    Target(
        "graphs/foreign",
        Format.BINARY,
        lambda: [_UNCHANGED],
        _check_graph,
        limit_s=20.0,
        limit_bytes=4 << 30,
    ),
)
