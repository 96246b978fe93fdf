from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.collectives.model import modelled_time
from neurontools.compiler.engines.cost import MAX_NS, MAX_WORK, CostError, CostRow, Engine, GraphCost
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.modelled_core import engine_costs
from neurontools.compiler.graph import Graph, Node
from neurontools.gpsimd import rates
from neurontools.machine.instances.catalogue import DeviceType, instance_names, instance_type
from tests.compiler.graphs import custom_graph, graph_of, graphs, mlp, tensor

TRN1 = instance_type("trn1.2xlarge").device
TRN2 = instance_type("trn2.48xlarge").device
LAUNCH_NS = engine_costs(TRN1.core.name).launch_ns
TRN3 = instance_type("trn3.48xlarge").device


def is_collective(opcode: str) -> bool:
    return opcode == "PSEUDO_TRIGGER_COLLECTIVE"


@given(graphs())
@settings(max_examples=30)
def test_one_engine_does_one_thing_at_a_time(graph: Graph) -> None:
    cost = estimate(graph, TRN1)
    for engine in Engine:
        mine = [op for op in cost.ops if op.engine is engine and not is_collective(op.opcode)]
        mine.sort(key=lambda op: op.start_ns)
        for earlier, later in itertools.pairwise(mine):
            assert earlier.start_ns + earlier.duration_ns <= later.start_ns


@given(graphs())
@settings(max_examples=30)
def test_an_engine_is_busy_no_longer_than_its_interval(graph: Graph) -> None:
    for op in estimate(graph, TRN1).ops:
        assert 0 < op.busy_ns <= op.duration_ns
        assert op.count >= 1


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
    stored = GraphCost.from_bytes(cost.to_bytes(), graph)
    assert stored == cost
    assert stored.ops == cost.ops


@pytest.mark.parametrize("schema", [0, 1, "2", None])
def test_a_cost_model_of_another_schema_is_refused(schema):
    head, _, body = estimate(mlp(), TRN1).to_bytes().partition(b"\n")
    other = json.dumps(json.loads(head) | {"schema": schema}).encode()
    with pytest.raises(CostError, match=r"schema .* is not supported \(supported: 2\)"):
        GraphCost.from_bytes(other + b"\n" + body, mlp())


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["schema", "rows", "kinds", "total_ns"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_anything_else_is_refused_with_one_error(data: bytes) -> None:
    with pytest.raises(CostError):
        GraphCost.from_bytes(data, mlp())


@given(st.data())
def test_a_damaged_schedule_is_refused_or_stays_in_range(data: st.DataObject) -> None:
    stored = bytearray(estimate(mlp(), TRN1).to_bytes())
    stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        cost = GraphCost.from_bytes(bytes(stored), mlp())
    except CostError:
        return
    assert all(0 <= op.busy_ns <= op.duration_ns for op in cost.ops)
    assert all(op.start_ns >= 0 and op.start_ns + op.duration_ns <= MAX_NS for op in cost.ops)


@pytest.mark.parametrize("name", instance_names())
def test_every_instance_type_has_rates_for_every_engine(name: str) -> None:
    graph, _ = custom_graph()
    for example in (mlp(), mlp(dtype="bfloat16"), graph):
        assert estimate(example, instance_type(name).device).total_ns > 0


@pytest.mark.parametrize(("device", "lnc"), [(TRN1, 1), (TRN2, 1), (TRN2, 2), (TRN3, 1)])
def test_a_large_matmul_reaches_what_the_best_kernels_reach(device: DeviceType, lnc: int) -> None:
    a, b, c = (tensor(slot, 4096, 4096, dtype="bfloat16") for slot in range(3))
    cost = estimate(graph_of(Node("aten.mm.default", (a, b), (), (c,))), device, lnc=lnc)
    achieved = cost.flops / cost.total_ns * 1e9
    assert 0.8 < achieved / (device.core.tensor_flops_s("bfloat16") * lnc) < 0.9


def test_a_contraction_pays_for_the_whole_array() -> None:
    def busy_ns(depth: int) -> int:
        a, b, c = tensor(0, 2048, depth), tensor(1, depth, 4096), tensor(2, 2048, 4096)
        graph = graph_of(Node("aten.mm.default", (a, b), (), (c,)), inputs=(0, 1))
        return estimate(graph, TRN1).engine_busy_ns(Engine.TENSOR)

    assert busy_ns(129) > 1.8 * busy_ns(128)
    assert busy_ns(100) == pytest.approx(busy_ns(128), rel=0.02)
    assert busy_ns(260) > 1.3 * busy_ns(256)


def test_elementwise_work_is_bound_by_the_transfers() -> None:
    a, b, c = (tensor(slot, 1 << 22) for slot in range(3))
    cost = estimate(graph_of(Node("aten.add.Tensor", (a, b), (), (c,)), inputs=(0, 1)), TRN1)
    moved = sum(op.read_bytes + op.write_bytes for op in cost.ops)
    assert moved == 3 * 4 << 22
    assert cost.total_ns - LAUNCH_NS == pytest.approx(moved / 272e9 * 1e9, rel=0.1)


def test_a_chain_of_elementwise_operators_touches_memory_once() -> None:
    views = [tensor(slot, 1 << 24) for slot in range(5)]
    calls = [
        Node("aten.mul.Tensor", (before, before), (), (after,)) for before, after in itertools.pairwise(views)
    ]
    cost = estimate(graph_of(*calls, inputs=(0,)), TRN1)
    assert sum(op.read_bytes for op in cost.ops) == 4 << 24
    assert sum(op.write_bytes for op in cost.ops) == 4 << 24
    assert cost.spill_save_bytes == 0


def test_a_custom_operator_costs_what_the_calibration_says() -> None:
    graph, _ = custom_graph()
    cost = estimate(graph, TRN1)
    assert cost.gpsimd_ns == round(rates().launch_ns + rates().transfer_ns(2 * 64 * 4))
    assert cost.total_ns == LAUNCH_NS + cost.gpsimd_ns
    assert estimate(graph, TRN1, custom={0: 1_234_567}).gpsimd_ns == 1_234_567


def test_an_embedding_is_charged_for_its_rows_and_not_for_its_table() -> None:
    def lookup(rows: int) -> GraphCost:
        table, index, out = tensor(0, rows, 768), tensor(1, 128, dtype="int64"), tensor(2, 128, 768)
        call = Node("aten.embedding.default", (table, index), (), (out,))
        return estimate(graph_of(call, inputs=(0, 1)), TRN1)

    small, large = lookup(1000), lookup(50_000)
    assert small.total_ns == large.total_ns
    assert sum(op.read_bytes for op in large.ops) == 128 * (768 * 4 + 8)
    assert large.gpsimd_ns == 0
    assert large.engine_busy_ns(Engine.GPSIMD) > 0


def test_two_physical_cores_are_faster_than_one() -> None:
    graph = mlp(2048, 2048)
    assert estimate(graph, TRN2, lnc=2).total_ns < estimate(graph, TRN2, lnc=1).total_ns
    assert estimate(graph, TRN2) == estimate(graph, TRN2, lnc=2)


def test_casting_makes_float32_products_faster_and_nothing_else() -> None:
    graph = mlp(2048, 2048)
    plain, cast = estimate(graph, TRN1), estimate(graph, TRN1, matmul_dtype="bf16")
    assert cast.engine_busy_ns(Engine.TENSOR) < plain.engine_busy_ns(Engine.TENSOR) / 2
    assert cast.engine_busy_ns(Engine.VECTOR) == plain.engine_busy_ns(Engine.VECTOR)


def test_weights_are_stored_in_the_type_that_they_are_cast_to() -> None:
    graph = mlp(128, 2048)
    loaded = [
        sum(op.read_bytes for op in estimate(graph, TRN1, matmul_dtype=dtype).ops) for dtype in (None, "bf16")
    ]
    assert loaded[0] - loaded[1] == 2048 * 2048 * 2


def test_independent_work_of_two_engines_overlaps() -> None:
    a, b, c = (tensor(slot, 2048, 2048) for slot in range(3))
    d, e = tensor(3, 2048, 2048), tensor(4, 2048, 2048)
    product, power = Node("aten.mm.default", (a, b), (), (c,)), Node("aten.exp.default", (d,), (), (e,))
    together = estimate(graph_of(product, power), TRN1).total_ns
    assert together < estimate(graph_of(product), TRN1).total_ns + estimate(graph_of(power), TRN1).total_ns


def test_an_expanded_operand_is_read_once() -> None:
    from neurontools.compiler.graph import View
    from neurontools.compiler.work import read_bytes

    expanded = View(0, "float32", (1000, 8), (0, 1), 0)
    assert read_bytes(Node("aten.exp.default", (expanded,), (), (tensor(1, 1000, 8),))) == 8 * 4


def test_overwriting_does_not_read_the_target() -> None:
    from neurontools.compiler.work import read_bytes, write_bytes

    copy = Node("aten.copy_.default", (tensor(0, 10), tensor(1, 10)), (), (tensor(0, 10),))
    assert (read_bytes(copy), write_bytes(copy)) == (40, 40)


@pytest.mark.parametrize("number", [-1, 2**63, 10**400, float("inf"), float("nan"), "1", None])
@pytest.mark.parametrize("name", ["total_ns", "rows", "sbuf_peak_bytes", "spill_save_bytes"])
def test_totals_out_of_range_are_refused(name: str, number: object) -> None:
    head, _, body = estimate(mlp(), TRN1).to_bytes().partition(b"\n")
    damaged = json.dumps(json.loads(head) | {name: number}).encode()
    with pytest.raises(CostError):
        GraphCost.from_bytes(damaged + b"\n" + body, mlp())


@pytest.mark.parametrize("field", [name for name in CostRow._fields if name not in {"opcode", "engine"}])
@pytest.mark.parametrize("number", [-1, 2**62 + 1])
def test_numbers_of_a_row_out_of_range_are_refused(field: str, number: int) -> None:
    cost = estimate(mlp(), TRN1)
    damaged = cost.rows[0]._replace(**{field: number})
    stored = replace(cost, rows=(damaged, *cost.rows[1:])).to_bytes()
    with pytest.raises(CostError):
        GraphCost.from_bytes(stored, mlp())


def test_a_schedule_of_another_graph_is_refused() -> None:
    with pytest.raises(CostError):
        GraphCost.from_bytes(estimate(mlp(), TRN1).to_bytes(), custom_graph()[0])


def test_the_work_of_all_operations_is_limited() -> None:
    cost = estimate(mlp(), TRN1)
    rows = tuple(row._replace(flops=MAX_WORK // 2) for row in cost.rows)
    with pytest.raises(CostError):
        GraphCost.from_bytes(replace(cost, rows=rows).to_bytes(), mlp())


def test_a_schedule_of_an_hour_is_accepted_and_a_longer_one_is_not() -> None:
    cost = estimate(mlp(), TRN1)
    assert GraphCost.from_bytes(replace(cost, total_ns=MAX_NS).to_bytes(), mlp()).total_ns == MAX_NS
    with pytest.raises(CostError):
        GraphCost.from_bytes(replace(cost, total_ns=MAX_NS + 1).to_bytes(), mlp())


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
    (row,) = estimate(graph_of(call), device).ops
    assert row.duration_ns == row.busy_ns == round(expected.time_s * 1e9)


def test_a_collective_of_unknown_ranks_costs_its_bytes() -> None:
    gradients = tensor(0, 4)
    for groups in ("", "{{0}}", "{{0,0}}", "{{0,99999999}}", "{{0,1},{1,2}}"):
        call = Node("neurontools.all_reduce_.default", ((gradients,), "sum", 0.5, groups), (), ())
        assert estimate(graph_of(call), TRN1).total_ns > 0
