"""HLO modules of real compilers: read from bytes, and any damage to them survived."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neurontools.cache import layouts
from neurontools.cache.graph_facts import GraphForm, TensorType
from neurontools.cache.graph_reader import UnreadableGraphError, facts_of_graph, read_graph
from neurontools.cache.hlo import HloError, read_hlo
from neurontools.cache.why.diff import diff_graphs
from neurontools.cache.why.diff_text import diff_lines
from neurontools.commands.cache import main
from neurontools.compiler.graph import Node
from tests.cache import hlo_modules
from tests.cache.hlo_modules import Op, computation, data, module, number, shape
from tests.compiler.graphs import graph_of, tensor

if TYPE_CHECKING:
    from tests.cache.conftest import Tree

WHOLE = hlo_modules.mlp()


def test_a_module_is_read_with_shapes_sources_constants_and_aliases() -> None:
    facts = read_graph(WHOLE)
    assert facts.form is GraphForm.HLO
    assert facts.inputs == (TensorType("f32", (8, 16)), TensorType("f32", (16, 4)))
    assert facts.names == ("dot", "constant", "multiply", "all-reduce", "tuple")
    assert [operation.source for operation in facts.operations[:2]] == [
        "/home/u/train.py:11",
        "/home/u/train.py:12",
    ]
    assert facts.operations[1].constants == ("0.5",)
    assert [operand.input_number for operand in facts.operations[0].operands] == [0, 1]
    assert [operand.producer for operand in facts.operations[2].operands] == [0, 1]
    assert facts.operations[3].constants[0] == "replica_group=[0, 1]"
    assert facts.operations[3].constants[1].startswith("calls add ")
    assert [output.tensor for output in facts.outputs] == [TensorType("f32", (8, 4))]
    assert facts.aliases == ("output [0] is parameter 1",)
    assert facts.unread == ()


@pytest.mark.parametrize(("entry", "first"), [(0, "multiply"), (1, "add"), (2, "multiply"), (9, "multiply")])
def test_the_computation_that_runs_is_found_by_its_number_or_else_by_its_name(entry: int, first: str) -> None:
    one, other, last = (
        computation(name, identity, 2, [Op(1, "parameter", shape("f32")), Op(2, kind, shape("f32"), (1,))])
        for identity, (name, kind) in enumerate(
            [("sum", "add"), ("main", "multiply"), ("rest", "negate")], start=1
        )
    )
    assert read_graph(module(one, other, last, entry=entry)).names[-1] == first


def test_instruction_ids_take_no_part() -> None:
    assert read_graph(hlo_modules.mlp(first=1)) != read_graph(hlo_modules.mlp(rows=9))
    one, other = (read_graph(hlo_modules.mlp(first=first)).operations for first in (1, 5000))
    assert one == other


def test_a_module_inside_of_an_hlo_proto_and_in_gzip_is_read() -> None:
    assert read_graph(data(1, WHOLE)) == read_graph(WHOLE) == read_graph(gzip.compress(WHOLE))


def test_numbers_may_come_one_by_one_and_unknown_types_have_a_number() -> None:
    plain = number(2, 77) + number(3, 2) + number(3, 3)
    ops = [Op(1, "parameter", plain, extra=number(9, 0)), Op(2, "negate", plain, (1,))]
    facts = read_graph(module(computation("main", 1, 2, ops), entry=1))
    assert facts.inputs == (TensorType("type77", (2, 3)),)
    assert len(facts.outputs) == 1


def test_other_parts_of_a_computation_are_not_instructions() -> None:
    op = Op(1, "parameter", shape("f32", 2), extra=number(9, 0))
    plain = computation("main", 1, 1, [op])
    signature = data(4, data(1, shape("f32", 2)) + data(2, shape("f32", 2)))
    assert read_graph(module(plain + signature, entry=1)) == read_graph(module(plain, entry=1))


def test_a_constant_that_is_no_short_list_is_its_digest() -> None:
    content = hlo_modules.literal(*[0.5] * 4096)
    op = Op(1, "constant", shape("f32", 4096), extra=data(8, content))
    facts = read_graph(module(computation("main", 1, 1, [op]), entry=1))
    assert facts.operations[0].constants == (
        f"constant {hashlib.sha256(content).hexdigest()[:8]} ({len(content)} bytes)",
    )


def test_what_is_lost_is_reported_and_the_rest_is_read() -> None:
    cut = read_graph(WHOLE[:-6])
    assert cut.names == read_graph(WHOLE).names
    assert len(cut.unread) == 1
    lost = [Op(2, "negate", shape("f32", 2), (1,))]
    facts = read_graph(module(computation("main", 1, 2, lost), entry=1))
    assert facts.unread == ("1 operands refer to instructions that do not exist",)


@pytest.mark.parametrize("content", [b"", b"hlo", b"\x00", b"\xff" * 40, data(1, "name"), b"\x1f\x8bno"])
def test_what_is_not_a_module_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableGraphError):
        read_graph(content)


@given(st.binary(max_size=400))
@example(b"\x1a" * 60)
@example(data(3, b"\x12" + b"\xff" * 9 + b"\x01"))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        read_hlo(content)
    except HloError:
        return


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.integers(0, len(WHOLE)))
def test_any_damage_to_a_module_is_survived(position: int, byte: int, length: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[position] = byte
    try:
        read_graph(bytes(damaged[:length]))
    except UnreadableGraphError:
        return


def test_a_list_of_very_many_numbers_comes_to_an_end() -> None:
    many = number(14, 3) * 200_000
    ops = [Op(1, "parameter", shape("f32", 2)), Op(2, "reverse", shape("f32", 2), (1,), many)]
    facts = read_graph(module(computation("main", 1, 2, ops), entry=1))
    assert facts.operations[0].constants[0].startswith("dimensions=[3, 3, ")
    diff = diff_graphs(
        facts, read_graph(module(computation("main", 1, 2, [*ops[:1], replace(ops[1], extra=b"")]), entry=1))
    )
    assert max(len(line.text) for line in diff_lines(diff)) < 400


def test_shapes_inside_of_shapes_end() -> None:
    deep = shape("f32", 2)
    for _ in range(3000):
        deep = hlo_modules.tuple_shape(deep)
    facts = read_graph(module(computation("main", 1, 1, [Op(1, "constant", deep)]), entry=1))
    assert facts.names == ("constant",)


def test_show_prints_a_summary_of_it(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    entry = tree.entry(compiler="2.16.372.0+4a9b2326", files={layouts.GRAPH: WHOLE})
    assert main(["show", str(entry)]) == 0
    shown = capsys.readouterr().out
    assert "5 operators of an HLO module (model.hlo_module.pb" in shown
    assert "  inputs      f32[8,16], f32[16,4]" in shown
    assert "  from        /home/u/train.py:11 to /home/u/train.py:13" in shown
    assert main(["show", str(entry), "--json"]) == 0
    graph = json.loads(capsys.readouterr().out)[0]["graph"]
    assert (graph["form"], graph["readable"], graph["operators"]["dot"]) == ("hlo", True, 1)


def test_a_list_of_tensors_is_its_length_and_numbers_are_shown() -> None:
    nodes = (
        Node("aten.cat.default", ((tensor(0, 2), tensor(1, 2)), 0), (), (tensor(2, 4),)),
        Node("aten.index.Tensor", (tensor(2, 4), (None, tensor(0, 2))), (), (tensor(3, 2),)),
        Node("aten.sum.dim", (tensor(3, 2), (0, 1)), (), (tensor(4),)),
    )
    facts = facts_of_graph(graph_of(*nodes, inputs=(0, 1)))
    assert [operation.constants for operation in facts.operations] == [
        ("a list of 2", "0"),
        ("[None, ]",),
        ("[0, 1]",),
    ]
