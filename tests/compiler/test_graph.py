"""The stored form of graphs: the same graph comes back, and damage is refused.

complex64 compiles in some operators, other complex types in none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from msgspec import structs

from neurontools.compiler.graph import Graph, GraphError, Lifted, Node, View, graph_from_bytes
from neurontools.compiler.limits import type_error
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import graph_of, graphs, mlp, tensor


def test_what_cut_a_graph_is_stored_and_does_not_change_its_hash() -> None:
    plain = mlp()
    cut = replace(plain, cut="mark_step at train.py:9")
    assert cut.digest() == plain.digest()
    assert graph_from_bytes(cut.to_bytes()) == cut
    assert graph_from_bytes(plain.to_bytes()).cut == ""


def test_layers_are_stored_and_graphs_of_earlier_versions_have_none() -> None:
    plain = mlp()
    layered = replace(plain, nodes=tuple(structs.replace(node, layer="MLP.fc1") for node in plain.nodes))
    assert layered.digest() == plain.digest()
    assert graph_from_bytes(layered.to_bytes()) == layered
    line, _, sources = layered.to_bytes().partition(b"\n")
    earlier = {name: value for name, value in json.loads(sources).items() if name not in {"layers", "places"}}
    assert graph_from_bytes(line + b"\n" + json.dumps(earlier).encode()) == plain


def changed(graph: Graph, **fields: object) -> bytes:
    """Return a graph's stored form with other tables and columns."""
    line, _, sources = graph.to_bytes().partition(b"\n")
    stored = json.loads(line)
    assert fields.keys() <= stored.keys()
    return json.dumps(stored | fields).encode() + b"\n" + sources


@given(graphs())
def test_a_stored_graph_is_the_same_graph(graph: Graph) -> None:
    stored = graph_from_bytes(graph.to_bytes())
    assert stored == graph
    assert repr(stored) == repr(graph)  # True, 1 and 1.0 are equal
    assert stored.digest() == graph.digest() == replace(stored).digest()
    assert stored.to_bytes() == graph.to_bytes()


def test_constants_that_are_equal_stay_apart() -> None:
    values = (1, 1.0, True, 0.0, -0.0, math.inf, None, (1, True), (), "1")
    x = tensor(0, 4)
    nodes = [Node("a.b.c", (x, value, (x, Lifted(0)), value), (("k", value),), (x, None)) for value in values]
    graph = replace(graph_of(*nodes, inputs=(0,)), lifted=1)
    assert repr(graph_from_bytes(graph.to_bytes())) == repr(graph)
    assert len({replace(graph, nodes=(node,)).digest() for node in nodes}) == len(nodes)


def test_not_a_number_is_stored() -> None:
    graph = graph_of(Node("a.b.c", (math.nan,), (), (tensor(0, 4),)))
    ((nan,),) = (node.args for node in graph_from_bytes(graph.to_bytes()).nodes)
    assert isinstance(nan, float)
    assert math.isnan(nan)


def test_repeated_calls_take_few_bytes() -> None:
    def layers(count: int) -> int:
        x = [tensor(number, 64, 64) for number in range(2 * count + 2)]
        calls = [Node("aten.mm.default", (x[2 * n], x[2 * n + 1]), (), (x[2 * n + 2],)) for n in range(count)]
        return len(zlib.compress(graph_of(*calls, inputs=(0,)).to_bytes()))

    assert (layers(2000) - layers(1000)) / 1000 < 1


def test_the_stored_form_is_made_once_and_released() -> None:
    graph = mlp()
    line = graph.to_bytes().partition(b"\n")[0]
    assert hashlib.sha256(line).hexdigest() == graph.digest()
    kept = graph._stored_line()
    assert graph._stored_line() is kept
    graph.release_stored_form()
    assert graph._stored_line() is not kept
    assert graph.to_bytes().startswith(line)


@pytest.mark.parametrize("sizes", [[10**400], [2**62, 2**62], [0, 2**63], [-1], [2**40] * 100_000])
def test_sizes_beyond_any_device_are_damage(sizes: list[int]) -> None:
    (_, *others) = json.loads(mlp().to_bytes().partition(b"\n")[0])["layouts"]
    data = changed(mlp(), layouts=[["float32", sizes, [1] * len(sizes), 0], *others])
    with pytest.raises(GraphError, match="out of range"):
        graph_from_bytes(data)


def test_a_slot_beyond_any_device_is_damage() -> None:
    with pytest.raises(GraphError, match="out of range"):
        graph_from_bytes(changed(mlp(), slots=[10**400, 1, 1, 1]))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"operands": [0] * 6}, "differ in number"),
        ({"operands": [0] * 8}, "slot outside 0..3"),
        ({"operands": [0, 0, 0, 1, 0, 1, 2, 5]}, "slot outside 0..3"),
        ({"operands": [0, 0, 0, 1, 0, 1, 2, 10**30]}, "slot outside 0..3"),
        ({"operands": [0, 0, 0, 1, 0, 1, 2, True]}, "list of integers"),
        ({"operands": [0, 0, 0, 1, 0, 1, 2, 1.0]}, "list of integers"),
        ({"operands": {}}, "list of integers"),
        ({"scalars": [0]}, "differ in number"),
        ({"calls": [0, 1, 3]}, "outside 0..2"),
        ({"calls": [0, 1, -1]}, "outside 0..2"),
        ({"calls": [0, 1]}, "differ in number"),
        ({"inputs": [4]}, "slot outside 0..3"),
        ({"outputs": [-1]}, "slot outside 0..3"),
        ({"lifted": None}, "list of integers"),
        ({"layouts": []}, "unknown layout"),
        ({"layouts": [["float32", [4, 8], [1], 0]] * 3}, "number of sizes and strides"),
        ({"layouts": [[5, [4], [1], 0]] * 3}, "expected a text"),
        ({"forms": [["a.b.c", [{"view": True}], [], []]] * 3}, "unknown layout"),
        ({"forms": [["a.b.c", [{"file": "x"}], [], []]] * 3}, "unknown argument kind"),
        ({"forms": [["a.b.c", [], [], [5]]] * 3}, "AttributeError"),
        ({"forms": [["a.b.c", [], [], [{"lifted": True}]]] * 3}, "a result is a view or null"),
        ({"forms": [["a.b.c", [], [[5, 6]], []]] * 3}, "expected a text"),
        ({"forms": [[None, [], [], []]] * 3}, "expected a text"),
        (
            {"forms": [["a.b.c", functools.reduce(lambda inner, _: [inner], range(50), [1]), [], []]]},
            "deeply",
        ),
    ],
)
def test_damaged_tables_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        graph_from_bytes(changed(mlp(), **fields))


def test_scalars_that_do_not_exist_are_damage() -> None:
    graph = graph_of(Node("a.b.c", (Lifted(0), Lifted(1)), (), (tensor(0, 4),)))
    with pytest.raises(GraphError, match=r"scalar input outside 0\.\.0"):
        graph_from_bytes(replace(graph, lifted=1).to_bytes())


@pytest.mark.parametrize(
    "line",
    [b"[]", b"{", b'{"cut":"","sources":["a"],"calls":[0]}', b'{"cut":"","sources":[],"calls":[0,0,0]}'],
)
def test_damaged_source_lines_are_refused(line: bytes) -> None:
    with pytest.raises(GraphError, match="not a graph"):
        graph_from_bytes(mlp().to_bytes().partition(b"\n")[0] + b"\n" + line)


def test_another_schema_is_named_with_what_to_do() -> None:
    with pytest.raises(GraphError, match=r"graph schema 1 is not supported \(supported: 2\)") as raised:
        graph_from_bytes(changed(mlp(), schema=1))
    assert raised.value.remedy == "compile the model again"


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    with pytest.raises(GraphError, match="not a graph"):
        graph_from_bytes(b"[" * 100_000)


TRN1 = instance_type("trn1.2xlarge").device


def call(op: str, dtype: str) -> Node:
    view = View(0, dtype, (4,), (1,), 0)
    return Node(op, (view,), (), (view,), source="train.py:7")


@pytest.mark.parametrize(
    "op",
    [
        "add.Tensor",
        "mul_.Tensor",
        "_foreach_mul_.Scalar",
        "abs.default",
        "exp.default",
        "mm.default",
        "cat.default",
    ],
)
def test_complex64_runs_in_the_documented_operations(op: str) -> None:
    assert type_error(call(f"aten.{op}", "complex64"), TRN1) is None


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("aten.sum.default", "complex64"),
        ("aten._fft_c2c.default", "complex64"),
        ("aten.index.Tensor", "complex64"),
        ("aten.add.Tensor", "complex128"),
        ("mine.add.default", "complex64"),
    ],
)
def test_other_complex_calls_are_refused_with_the_source_line(op: str, dtype: str) -> None:
    error = type_error(call(op, dtype), TRN1)
    assert error is not None
    assert re.search(rf"NCC_EVRF004.*{dtype} in {op} \(train.py:7\)", error.message)
