from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from benchmarks.engine_model.builder import GraphBuilder, transpose
from benchmarks.engine_model.layers import attention, layer_norm, linear
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.lowering.calls import PartitionLayout, calls_of
from neurontools.compiler.engines.lowering.context import Lowering
from neurontools.compiler.engines.lowering.families import OperatorFamily, kind_of
from neurontools.compiler.engines.lowering.lower import lower, lower_elementwise
from neurontools.compiler.engines.lowering.matmul import choose_layout, factor_row, lower_matmul, tile_cycles
from neurontools.compiler.engines.lowering.reductions import lower_softmax
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.graph import Graph, Node
from neurontools.compiler.work import MatMul
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import custom_graph, graph_of, tensor

if TYPE_CHECKING:
    from neurontools.compiler.engines.instructions import CoreProgram, Instruction

DEVICE = instance_type("trn1.2xlarge").device
CORE = ModelledCore(DEVICE, 1, "bf16")
TRN2 = ModelledCore(instance_type("trn2.48xlarge").device, 1)


def program(graph: Graph, core: ModelledCore = CORE) -> CoreProgram:
    return lower(graph, core, {})


def instructions(graph: Graph, core: ModelledCore = CORE) -> list[Instruction]:
    return [one for step in program(graph, core).steps for one in step.instructions if one.count]


def opcodes(graph: Graph) -> list[str]:
    return [one.opcode for one in instructions(graph)]


@pytest.mark.parametrize(
    ("product", "weights_move", "count", "cycles"),
    [
        # One instruction: 512 columns, 64 to start it, 32 to load the stationary matrix.
        (MatMul(1, 128, 128, 512), True, 1, 512 + 64 + 32),
        (MatMul(1, 128, 128, 512), False, 4, 4 * (128 + 64 + 32)),
        (MatMul(1, 1, 128, 1), True, 1, 1 + 64 + 32),
        (MatMul(1, 100, 128, 10), True, 1, 64 + 64 + 32),
        (MatMul(1, 128, 129, 512), True, 2, 2 * (512 + 64 + 32)),
        # Eight results in PSUM share a stationary matrix.
        (MatMul(1, 128, 128, 4096), True, 8, 4096 + 8 * 64 + 32),
        (MatMul(1, 4096, 4096, 4096), True, 32 * 32 * 8, 32 * 32 * (4096 + 8 * 64 + 32)),
        # Two heads of depth 64 share the rows of the array.
        (MatMul(12, 128, 64, 128), True, 6, 6 * (128 + 64 + 32)),
    ],
)
def test_the_cycles_of_a_product_have_a_closed_form(
    product: MatMul, weights_move: bool, count: int, cycles: float
) -> None:
    assert tile_cycles(CORE, product, "bfloat16", weights_move=weights_move) == (count, cycles)


def test_a_product_between_norms_is_transposed_on_one_side_only() -> None:
    b = GraphBuilder()
    graph = b.finish(layer_norm(b, linear(b, layer_norm(b, b.input(256, 512)), 512)))
    products = [one for one in instructions(graph) if one.opcode == "MATMUL"]
    assert [one.turning for one in products] == [2 * 4]


def test_two_products_in_a_row_need_no_transpose_between_them() -> None:
    b = GraphBuilder()
    graph = b.finish(linear(b, linear(b, b.input(256, 512), 1024), 512))
    turning = [one.turning for one in instructions(graph) if one.opcode == "MATMUL"]
    assert turning == [2 * 4, 0]


def test_an_activation_reads_the_product_from_psum() -> None:
    b = GraphBuilder()
    made = linear(b, b.input(256, 512), 512, bias=False)
    graph = b.finish(b.like("gelu.default", made))
    assert opcodes(graph) == ["MATMUL", "COPY", "ACTIVATE"]  # the copy is that of the transposed input


def test_numbers_are_applied_by_the_neighbour() -> None:
    x, y, z, w = (tensor(slot, 128, 512) for slot in range(4))
    graph = graph_of(
        Node("aten.mul.Tensor", (x, 2.0), (), (y,)),
        Node("aten.add.Tensor", (y, x), (), (z,)),
        Node("aten.exp.default", (z,), (), (w,)),
        inputs=(0,),
    )
    assert opcodes(graph) == ["TENSOR_TENSOR", "ACTIVATE"]
    assert estimate(graph, DEVICE).flops == 3 * 128 * 512


def test_batch_norm_in_evaluation_is_folded_into_the_convolution() -> None:
    def network(training: bool) -> Graph:
        image, weight = tensor(0, 1, 64, 56, 56), tensor(1, 64, 64, 3, 3)
        made, normed, active = (tensor(slot, 1, 64, 56, 56) for slot in (2, 3, 4))
        scale = [tensor(slot, 64) for slot in (5, 6, 7, 8)]
        return graph_of(
            Node(
                "aten.convolution.default",
                (image, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1),
                (),
                (made,),
            ),
            Node("aten.native_batch_norm.default", (made, *scale, training, 0.1, 1e-5), (), (normed,)),
            Node("aten.relu.default", (normed,), (), (active,)),
            inputs=(0, 1, 5, 6, 7, 8),
        )

    assert opcodes(network(False)) == ["MATMUL", "SCALAR"]
    assert "BN_STATS" in opcodes(network(True))


@pytest.mark.parametrize("wanted", [PartitionLayout.ROW, PartitionLayout.COLUMN])
def test_of_two_equally_fast_orientations_the_one_that_is_wanted_is_chosen(wanted: PartitionLayout) -> None:
    other = next(layout for layout in (PartitionLayout.ROW, PartitionLayout.COLUMN) if layout is not wanted)
    low = Lowering(CORE, frozenset(), frozenset(), frozenset())
    product = MatMul(1, 256, 256, 256)
    _, cycles, moved = low.transpose_work("bfloat16", 256, 256)
    turning = cycles + moved * CORE.cycle_ns[Engine.VECTOR] / CORE.cycle_ns[Engine.TENSOR]
    for gain, best in ((-1.0, wanted), (0.0, wanted), (1.0, other)):
        choices = {other: (1, 1000.0 - gain), wanted: (1, 1000.0 + turning)}
        assert choose_layout(low, product, "bfloat16", choices, wanted) is best


def test_fused_attention_skips_what_a_causal_mask_hides() -> None:
    def busy_ns(causal: bool) -> int:
        b = GraphBuilder()
        graph = b.finish(attention(b, b.input(1, 1024, 256), 4, fused=True, causal=causal))
        return estimate(graph, DEVICE).engine_busy_ns(Engine.SCALAR)

    assert busy_ns(True) < 0.7 * busy_ns(False)


def test_fused_attention_moves_no_scores() -> None:
    b = GraphBuilder("bfloat16")
    fused = estimate(b.finish(attention(b, b.input(4, 2048, 512), 8, fused=True)), DEVICE)
    b = GraphBuilder("bfloat16")
    written = estimate(b.finish(attention(b, b.input(4, 2048, 512), 8, fused=False)), DEVICE)
    assert fused.spill_save_bytes < 4 * 8 * 2048 * 2048
    assert written.spill_save_bytes >= 4 * 8 * 2048 * 2048 * 2
    assert written.total_ns > 1.5 * fused.total_ns


def test_operators_that_nobody_described_are_listed() -> None:
    x, y, z = (tensor(slot, 128, 512) for slot in range(3))
    graph = graph_of(Node("aten.exp.default", (x,), (), (y,)), Node("aten.bessel_j9.default", (y,), (), (z,)))
    cost = estimate(graph, DEVICE)
    assert cost.unknown == (1,)
    assert [op.name for op in cost.ops if op.operator == 1 and op.engine is not Engine.DMA] == [
        "aten.bessel_j9.default"
    ]


def test_an_old_core_is_labelled() -> None:
    graph = graph_of(Node("aten.exp.default", (tensor(0, 128),), (), (tensor(1, 128),)))
    assert estimate(graph, instance_type("inf1.xlarge").device).fallback == "v2"
    assert estimate(graph, DEVICE).fallback == ""


def test_a_core_without_gpsimd_uses_its_vector_engine() -> None:
    graph, _ = custom_graph()
    (row,) = estimate(graph, instance_type("inf1.xlarge").device).rows
    assert (row.engine, row.opcode) == (Engine.VECTOR, "CUSTOM_OP")


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten.addmm.default", OperatorFamily.MATMUL),
        ("aten.convolution_backward_overrideable.default", OperatorFamily.CONVOLUTION),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", OperatorFamily.ATTENTION),
        ("aten.add_.Tensor", OperatorFamily.ELEMENTWISE),
        ("aten._foreach_addcdiv_.ScalarList", OperatorFamily.ELEMENTWISE),
        ("aten._fused_adamw_.default", OperatorFamily.ELEMENTWISE),
        ("aten.native_layer_norm_backward.default", OperatorFamily.NORM),
        ("aten._log_softmax_backward_data.default", OperatorFamily.SOFTMAX),
        ("aten.embedding_dense_backward.default", OperatorFamily.SCATTER),
        ("aten.index_put_.default", OperatorFamily.SCATTER),
        ("aten._to_copy.default", OperatorFamily.TRANSFER),
        ("aten.view_copy.default", OperatorFamily.TRANSFER),
        ("aten.cumsum.default", OperatorFamily.SCAN),
        ("neurontools.all_reduce_.default", OperatorFamily.COLLECTIVE),
        ("my_ops.relu.default", OperatorFamily.CUSTOM),
        ("aten.no_such_thing.default", OperatorFamily.UNKNOWN),
    ],
)
def test_an_operator_has_a_family(op: str, kind: OperatorFamily) -> None:
    assert kind_of(op) is kind


def test_a_transposed_weight_of_inference_costs_no_transpose_and_one_of_training_does() -> None:
    def turning(trains: bool) -> int:
        b = GraphBuilder("bfloat16", training=trains) if trains else GraphBuilder("bfloat16")
        x, w = b.input(128, 256), b.parameter(512, 256)
        made = b.compute("mm.default", x, transpose(w), shape=(128, 512))
        graph = b.finish(made)
        if trains:
            back = Node("aten.threshold_backward.default", (made, made, 0), (), (made,))
            graph = replace(graph, nodes=(*graph.nodes, back))
        return next(one.turning for one in instructions(graph) if one.opcode == "MATMUL")

    assert turning(trains=True) - turning(trains=False) == 4 * 2


def test_sixteen_bits_are_faster_on_vector_from_trn2_on() -> None:
    def vector_ns(dtype: str) -> float:
        b = GraphBuilder(dtype)
        graph = b.finish(b.like("relu.default", b.input(128, 4096)))
        return next(
            one.count * one.tile_ns for one in instructions(graph, TRN2) if one.engine is Engine.VECTOR
        )

    assert vector_ns("bfloat16") < 0.6 * vector_ns("float32")


def test_the_fused_transformer_layer_does_what_its_parts_do() -> None:
    width, inner = 256, 1024
    weights = [tensor(1, 3 * width, width), tensor(2, 3 * width), tensor(3, width, width), tensor(4, width)]
    norms = [tensor(slot, width) for slot in (5, 6, 7, 8)]
    feed = [tensor(9, inner, width), tensor(10, inner), tensor(11, width, inner), tensor(12, width)]
    source, made = tensor(0, 4, 128, width), tensor(13, 4, 128, width)
    arguments = (source, width, 4, *weights, True, False, 1e-5, *norms, *feed, None, None)
    layer = Node("aten._transformer_encoder_layer_fwd.default", arguments, (), (made,))
    fused = estimate(graph_of(layer, inputs=tuple(range(13))), DEVICE, matmul_dtype="bf16")
    assert fused.unknown == ()
    b = GraphBuilder()
    written = attention(b, b.input(4, 128, width), 4, fused=True)
    graph = b.finish(linear(b, b.like("gelu.default", linear(b, written, inner)), width))
    parts = estimate(graph, DEVICE, matmul_dtype="bf16")
    assert fused.matmul_flops == parts.matmul_flops
    assert fused.total_ns == pytest.approx(parts.total_ns, rel=0.3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("heads", "rows"), [(1, 1), (2, 1), (8, 1), (16, 4), (3, 7), (64, 1)])
def test_few_rows_of_many_products_are_charged_for_the_partitions_that_they_leave_once(
    heads: int, rows: int, dtype: str
) -> None:
    keys, depth = 4096, 128
    query, key = tensor(0, heads, rows, depth, dtype=dtype), tensor(1, heads, keys, depth, dtype=dtype)
    mask = tensor(2, 1, 1, keys, dtype=dtype)
    scores, scaled, masked, weights = (
        tensor(number, heads, rows, keys, dtype=dtype) for number in range(3, 7)
    )
    low = Lowering(CORE, frozenset({0, 1, 2}), frozenset(), frozenset())
    calls = calls_of(
        graph_of(
            Node("aten.bmm.default", (query, transpose(key)), (), (scores,)),
            Node("aten.div.Scalar", (scores, 11.3), (), (scaled,)),
            Node("aten.add.Tensor", (scaled, mask), (), (masked,)),
            Node("aten._softmax.default", (masked, -1, False), (), (weights,)),
            inputs=(0, 1, 2),
        )
    )
    lowerings = (lower_matmul, lower_elementwise, lower_elementwise, lower_softmax)
    for call, lower_one in zip(calls, lowerings, strict=True):
        low.start(call)
        lower_one(low, call)
        # Each product has partitions of its own; two lie side by side.
        expected = max(keys, heads * keys // 2)
        assert low.elements_of(call, call.results[0], PartitionLayout.ROW) == expected


@pytest.mark.parametrize(
    ("shape", "is_constant", "row"),
    [
        # 2480 bytes of a descriptor take as long as fewer: nine rows of 256 bytes share one, four of 512.
        ((4096, 128), True, 9 * 256),
        ((8, 4096, 128), False, 9 * 256),
        ((8192, 256), True, 4 * 512),
        ((4096, 64), False, 19 * 128),
        # A partition has one row, two, or one and a half.
        ((128, 128), True, 256),
        ((256, 128), False, 512),
        ((192, 128), True, 384),
        ((64, 128), True, 256),
        # Two rows would cost more than one each.
        ((1024, 768), True, 1536),
        ((1024, 4096), False, 8192),
    ],
)
def test_short_rows_that_follow_each_other_share_a_descriptor(
    shape: tuple[int, ...], is_constant: bool, row: int
) -> None:
    view = tensor(0, *shape, dtype="bfloat16")
    low = Lowering(CORE, frozenset({0}), frozenset({0} if is_constant else ()), frozenset())
    assert factor_row(low, view) == row
    if not is_constant:
        part = tensor(0, *shape[:-1], 2 * shape[-1], dtype="bfloat16")
        half = structs.replace(part, shape=shape)  # the left half of each row
        assert factor_row(low, half) == shape[-1] * 2
        swapped = structs.replace(
            view, shape=(*shape[:-2], shape[-1], shape[-2]), strides=(*view.strides[:-2], 1, shape[-1])
        )
        assert factor_row(low, swapped) == row
