"""Graphs for tests: a small builder, and hypothesis strategies."""

from __future__ import annotations

import hashlib
import math

from hypothesis import strategies as st

from neurontools.compiler.graph import Graph, Node, Slot, View, contiguous_strides
from neurontools.compiler.neff import NativePart
from neurontools.compiler.work import item_bytes


def tensor(slot: int, *shape: int, dtype: str = "float32") -> View:
    return View(slot, dtype, shape, contiguous_strides(shape), 0)


def graph_of(*nodes: Node, inputs: tuple[int, ...] = (), libraries: tuple[str, ...] = ()) -> Graph:
    from neurontools.compiler.graph import reads

    views = [view for node in nodes for view in (*reads(node), *(r for r in node.results if r is not None))]
    sizes: dict[int, int] = {}
    for view in views:
        size = math.prod(view.shape) * item_bytes(view.dtype)
        sizes[view.slot] = max(sizes.get(view.slot, 0), size)
    slots = tuple(Slot(sizes.get(number, 4)) for number in range(max(sizes, default=-1) + 1))
    last = nodes[-1].results[0] if nodes and nodes[-1].results else None
    return Graph(slots, inputs, 0, nodes, (last.slot,) if last else (), libraries)


def mlp(rows: int = 4, width: int = 8, *, dtype: str = "float32", source: str = "train.py:7") -> Graph:
    x, w, h, y = (
        tensor(0, rows, width, dtype=dtype),
        tensor(1, width, width, dtype=dtype),
        tensor(2, rows, width, dtype=dtype),
        tensor(3, rows, width, dtype=dtype),
    )
    return graph_of(
        Node("aten.mm.default", (x, w), (), (h,), source),
        Node("aten.relu.default", (h,), (), (y,), source),
        Node("aten.add_.Tensor", (y, h), (), (y,)),
        inputs=(0, 1),
    )


def custom_graph(library: bytes = b"\x7fELF") -> tuple[Graph, NativePart]:
    part = NativePart("librelu.so", hashlib.sha256(library).hexdigest(), library)
    x, y = tensor(0, 64), tensor(1, 64)
    return graph_of(
        Node("my_ops.relu_forward.default", (x,), (), (y,)), inputs=(0,), libraries=(part.digest,)
    ), part


_OPS = st.sampled_from(
    [
        "aten.mm.default",
        "aten.add.Tensor",
        "aten.mul_.Tensor",
        "aten.exp.default",
        "aten.sum.dim_IntList",
        "aten.copy_.default",
        "aten.embedding.default",
        "aten._foreach_add_.List",
        "aten.native_layer_norm_backward.default",
        "my_ops.relu.default",
        "neurontools.all_reduce_.default",
        "aten.zero_.default",
        "no-such-thing",
    ]
)
_VIEWS = st.builds(
    lambda slot, shape, dtype: tensor(slot, *shape, dtype=dtype),
    st.integers(0, 5),
    st.lists(st.integers(0, 64), max_size=4),
    st.sampled_from(["float32", "bfloat16", "int64", "bool", "float8_e4m3fn", "unheard_of"]),
)
_PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(max_size=5)
    | st.floats(allow_nan=False)
)
_NODES = st.builds(
    Node,
    op=_OPS,
    args=st.lists(_VIEWS | _PLAIN | st.lists(_VIEWS, max_size=4).map(tuple), max_size=5).map(tuple),
    kwargs=st.lists(st.tuples(st.text(max_size=3), _PLAIN | _VIEWS), max_size=2).map(tuple),
    results=st.lists(st.none() | _VIEWS, max_size=3).map(tuple),
    source=st.text(max_size=8),
)


def graphs() -> st.SearchStrategy[Graph]:
    slots = st.lists(st.integers(0, 10**6).map(Slot), min_size=6, max_size=6).map(tuple)
    numbers = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    return st.builds(
        Graph,
        slots=slots,
        inputs=numbers,
        lifted=st.integers(0, 3),
        nodes=st.lists(_NODES, max_size=12).map(tuple),
        outputs=numbers,
        libraries=st.just(()),
    )
