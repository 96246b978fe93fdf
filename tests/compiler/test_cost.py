from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.collectives.model import modelled_time
from neurontools.compiler.cost import (
    MAX_NS,
    CostError,
    Engine,
    GraphCost,
    estimate,
)
from neurontools.compiler.graph import Graph, Node, reads
from neurontools.compiler.work import written
from neurontools.gpsimd import rates
from neurontools.machine.instances.catalogue import DeviceType, instance_names, instance_type
from tests.compiler.graphs import custom_graph, graph_of, graphs, mlp, tensor

TRN1 = instance_type("trn1.2xlarge").device
TRN2 = instance_type("trn2.48xlarge").device


@given(graphs())
@settings(max_examples=30)
def test_one_engine_does_one_thing_at_a_time(graph: Graph) -> None:
    cost = estimate(graph, TRN1)
    for engine in Engine:
        mine = [op for op in cost.ops if op.engine is engine]
        for earlier, later in itertools.pairwise(mine):
            assert earlier.start_ns + earlier.duration_ns <= later.start_ns


@given(graphs())
@settings(max_examples=30)
def test_unwritten_bytes_are_not_read(graph: Graph) -> None:
    cost = estimate(graph, TRN1)
    from neurontools.compiler.engines import has_instruction

    nodes = [node for node in graph.nodes if has_instruction(node)]
    for later, op in enumerate(cost.ops):
        needs = {view.slot for view in reads(nodes[later])}
        overwrites = {view.slot for view in written(nodes[later])}
        for earlier in range(later):
            makes = {view.slot for view in written(nodes[earlier])}
            uses = {view.slot for view in reads(nodes[earlier])} | makes
            if needs & makes or overwrites & uses:
                assert cost.ops[earlier].start_ns + cost.ops[earlier].duration_ns <= op.start_ns


@given(graphs())
@settings(max_examples=30)
def test_the_total_is_the_end_of_the_last_instruction(graph: Graph) -> None:
    cost = estimate(graph, TRN1)
    assert cost.total_ns == max((op.start_ns + op.duration_ns for op in cost.ops), default=0)
    assert cost.flops == sum(op.flops for op in cost.ops)


@given(graphs())
@settings(max_examples=30)
def test_a_schedule_survives_storing(graph: Graph) -> None:
    cost = estimate(graph, TRN1)
    assert GraphCost.from_bytes(cost.to_bytes()) == cost


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_a_cost_model_of_another_schema_is_refused(schema):
    stored = {"schema": 1, "total_ns": 0, "ops": []}
    assert GraphCost.from_bytes(json.dumps(stored).encode()).total_ns == 0
    with pytest.raises(CostError, match=r"schema .* is not supported \(supported: 1\)"):
        GraphCost.from_bytes(json.dumps(stored | {"schema": schema}).encode())


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["schema", "ops", "total_ns"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_anything_else_is_refused_with_one_error(data: bytes) -> None:
    with pytest.raises(CostError):
        GraphCost.from_bytes(data)


@pytest.mark.parametrize("name", instance_names())
def test_every_instance_type_has_rates_for_every_engine(name: str) -> None:
    graph, _ = custom_graph()
    for example in (mlp(), mlp(dtype="bfloat16"), graph):
        assert estimate(example, instance_type(name).device).total_ns > 0


def test_a_large_matmul_runs_near_the_documented_rate() -> None:
    a, b, c = (tensor(slot, 4096, 4096, dtype="bfloat16") for slot in range(3))
    cost = estimate(graph_of(Node("aten.mm.default", (a, b), (), (c,))), TRN1)
    achieved = cost.flops / cost.total_ns * 1e9
    assert 0.95 < achieved / TRN1.core.tensor_flops_s("bfloat16") <= 1.0


def test_a_thin_matmul_pays_for_the_whole_array() -> None:
    def duration_ns(rows: int) -> int:
        a, b, c = tensor(0, rows, 8192), tensor(1, 8192, 128), tensor(2, rows, 128)
        return estimate(graph_of(Node("aten.mm.default", (a, b), (), (c,))), TRN1).total_ns

    assert duration_ns(2048) > 1.9 * duration_ns(1024)


def test_elementwise_work_is_bound_by_memory() -> None:
    a, b, c = (tensor(slot, 1 << 22) for slot in range(3))
    cost = estimate(graph_of(Node("aten.add.Tensor", (a, b), (), (c,))), TRN1)
    moved = cost.ops[0].read_bytes + cost.ops[0].write_bytes
    assert moved == 3 * 4 << 22
    share = TRN1.memory_bandwidth_bytes_s / TRN1.physical_cores
    assert cost.total_ns == pytest.approx(moved / share * 1e9, rel=0.01)


def test_a_custom_operator_costs_what_the_calibration_says() -> None:
    graph, _ = custom_graph()
    cost = estimate(graph, TRN1)
    assert cost.gpsimd_ns == cost.total_ns == round(rates().launch_ns + rates().transfer_ns(2 * 64 * 4))


def test_built_in_gpsimd_work_is_not_custom_time() -> None:
    table, index, out = tensor(0, 100, 8), tensor(1, 4, dtype="int64"), tensor(2, 4, 8)
    cost = estimate(graph_of(Node("aten.embedding.default", (table, index), (), (out,))), TRN1)
    assert cost.gpsimd_ns == 0
    assert cost.engine_busy_ns(Engine.GPSIMD) == cost.total_ns


def test_two_physical_cores_are_faster_than_one() -> None:
    graph = mlp(2048, 2048)
    assert estimate(graph, TRN2, lnc=2).total_ns < estimate(graph, TRN2, lnc=1).total_ns
    assert estimate(graph, TRN2) == estimate(graph, TRN2, lnc=2)


def test_casting_makes_float32_products_faster_and_nothing_else() -> None:
    graph = mlp(2048, 2048)
    plain, cast = estimate(graph, TRN1), estimate(graph, TRN1, matmul_dtype="bf16")
    assert cast.ops[0].duration_ns < plain.ops[0].duration_ns / 2
    assert [op.duration_ns for op in cast.ops[1:]] == [op.duration_ns for op in plain.ops[1:]]


def test_independent_work_of_two_engines_overlaps() -> None:
    a, b, c = (tensor(slot, 2048, 2048) for slot in range(3))
    d, e = tensor(3, 2048, 2048), tensor(4, 2048, 2048)
    cost = estimate(
        graph_of(Node("aten.mm.default", (a, b), (), (c,)), Node("aten.exp.default", (d,), (), (e,))), TRN1
    )
    assert cost.ops[1].start_ns == 0


def test_an_expanded_operand_is_read_once() -> None:
    from neurontools.compiler.graph import View
    from neurontools.compiler.work import read_bytes

    expanded = View(0, "float32", (1000, 8), (0, 1), 0)
    assert read_bytes(Node("aten.exp.default", (expanded,), (), (tensor(1, 1000, 8),))) == 8 * 4


def test_overwriting_does_not_read_the_target() -> None:
    from neurontools.compiler.work import read_bytes, write_bytes

    copy = Node("aten.copy_.default", (tensor(0, 10), tensor(1, 10)), (), (tensor(0, 10),))
    assert (read_bytes(copy), write_bytes(copy)) == (40, 40)


@pytest.mark.parametrize("number", [-1, 2**63, 10**400, float("inf"), float("nan")])
@pytest.mark.parametrize("field", ["total_ns", 3, 4, 5, 6, 7])
def test_numbers_out_of_range_are_refused(field: str | int, number: float) -> None:
    stored = json.loads(estimate(mlp(), TRN1).to_bytes())
    if isinstance(field, int):
        stored["ops"][0][field] = number
    else:
        stored[field] = number
    with pytest.raises(CostError):
        GraphCost.from_bytes(json.dumps(stored).encode())


def test_the_work_of_all_operations_is_limited() -> None:
    stored = json.loads(estimate(mlp(), TRN1).to_bytes())
    for operation in stored["ops"]:
        operation[5] = 2**62
    with pytest.raises(CostError):
        GraphCost.from_bytes(json.dumps(stored).encode())


def test_a_schedule_of_an_hour_is_accepted_and_a_longer_one_is_not() -> None:
    stored = json.loads(estimate(mlp(), TRN1).to_bytes())
    stored["total_ns"] = MAX_NS
    assert GraphCost.from_bytes(json.dumps(stored).encode()).total_ns == MAX_NS
    stored["total_ns"] += 1
    with pytest.raises(CostError):
        GraphCost.from_bytes(json.dumps(stored).encode())


def one_group(ranks: int) -> str:
    return "{{" + ",".join(map(str, range(ranks))) + "}}"


@pytest.mark.parametrize(
    ("device", "groups", "ranks", "instance", "nodes"),
    [
        (TRN1, one_group(2), 2, "trn1.2xlarge", 1),
        (TRN1, one_group(32), 32, "trn1.32xlarge", 1),
        (TRN1, one_group(64), 32, "trn1.32xlarge", 2),
        (TRN2, one_group(4), 4, "trn2.3xlarge", 1),
    ],
)
def test_a_collective_costs_what_nccom_test_says(
    device: DeviceType, groups: str, ranks: int, instance: str, nodes: int
) -> None:
    gradients = tensor(0, 256, 1024)
    call = Node("neurontools.all_reduce_.default", ((gradients,), "sum", 0.5, groups), (), ())
    expected = modelled_time("all_reduce", 2**20, ranks, instance, nodes=nodes)
    assert estimate(graph_of(call), device).total_ns == round(expected.time_s * 1e9)


def test_a_collective_of_unknown_ranks_costs_its_bytes() -> None:
    gradients = tensor(0, 4)
    for groups in ("", "{{0}}", "{{0,0}}", "{{0,99999999}}", "{{0,1},{1,2}}"):
        call = Node("neurontools.all_reduce_.default", ((gradients,), "sum", 0.5, groups), (), ())
        assert estimate(graph_of(call), TRN1).total_ns > 0
