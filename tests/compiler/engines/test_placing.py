"""How values fill the array, the partitions and SBUF."""

from __future__ import annotations

import pytest

from benchmarks.engine_model.builder import GraphBuilder
from benchmarks.engine_model.convolutional import batch_norm, convolve, relu
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.instructions import CoreProgram, Step, StepOperand
from neurontools.compiler.engines.lowering.families import family, has_instruction, passes_of
from neurontools.compiler.engines.on_chip_memory import place
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.graph import Node
from neurontools.machine.instances.catalogue import DeviceType, instance_type
from tests.compiler.graphs import graph_of, tensor

TRN1, TRN2 = (instance_type(name).device for name in ("trn1.2xlarge", "trn2.48xlarge"))


def exponential_ns(b: GraphBuilder, device: DeviceType = TRN1) -> int:
    ops = estimate(b.finish(), device, lnc=1).ops
    return sum(op.busy_ns for op in ops if op.opcode == "ACTIVATE")


def softmax_of_products(batch: int, rows: int) -> GraphBuilder:
    b = GraphBuilder("bfloat16")
    left, right = b.input(batch, rows, 64), b.input(batch, 64, 128)
    b.like("_softmax.default", b.compute("bmm.default", left, right, shape=(batch, rows, 128)), -1, False)
    return b


def test_matrices_of_a_batch_do_not_share_partitions_beyond_the_tiles_of_the_array() -> None:
    full, half, eighth = (
        softmax_of_products(batch, rows) for batch, rows in ((16, 128), (32, 64), (128, 16))
    )
    assert exponential_ns(half) == pytest.approx(exponential_ns(full), rel=0.05)
    assert exponential_ns(eighth) == pytest.approx(4 * exponential_ns(full), rel=0.05)


def test_a_finer_array_places_more_matrices_side_by_side() -> None:
    full, eighth = softmax_of_products(16, 128), softmax_of_products(128, 16)
    assert exponential_ns(eighth, TRN2) == pytest.approx(2 * exponential_ns(full, TRN2), rel=0.05)


def convolution_ns(channels: int, kernel: int) -> int:
    b = GraphBuilder("bfloat16")
    convolve(b, b.input(1, channels, 64, 64), 64, kernel)
    return estimate(b.finish(), TRN1).engine_busy_ns(Engine.TENSOR)


def test_images_of_few_channels_leave_the_array_empty() -> None:
    # Two tiles of the array take two of the 49 offsets at once, whether 3 or 64 channels fill them.
    assert convolution_ns(3, 7) == pytest.approx(convolution_ns(64, 7), rel=0.05)
    assert convolution_ns(3, 7) > 20 * convolution_ns(64, 1)


def test_a_value_that_is_changed_in_place_is_spilled_once() -> None:
    b = GraphBuilder()
    x = relu(b, convolve(b, b.input(64, 64, 56, 56), 64, 3))
    graph = b.finish(convolve(b, x, 64, 3))
    cost = estimate(graph, TRN1)
    assert cost.spill_save_bytes == cost.spill_reload_bytes == 64 * 64 * 56 * 56 * 4
    assert estimate(graph, TRN1, matmul_dtype="bfloat16").spill_save_bytes == cost.spill_save_bytes // 2


def test_a_folded_batch_norm_moves_nothing() -> None:
    b = GraphBuilder()
    graph = b.finish(relu(b, batch_norm(b, convolve(b, b.input(1, 64, 28, 28), 64, 3))))
    moved = [op for op in estimate(graph, TRN1).ops if "batch_norm" in op.name and op.engine is Engine.DMA]
    assert moved == []


def test_a_value_for_which_there_is_no_room_beside_the_operands_is_spilled() -> None:
    size, capacity = 10 << 20, 24 << 20
    operands = [StepOperand(number, size, 4096) for number in range(4)]
    steps = [
        Step(0, reads=[operands[0]], writes=[operands[1]]),
        Step(1, reads=[operands[0], operands[1]], writes=[operands[2]]),
        Step(2, reads=[operands[1], operands[2]], writes=[operands[3]]),
    ]
    found = place(CoreProgram(steps, frozenset({0}), frozenset({3})), capacity)
    assert found.spill_save_bytes == found.spill_reload_bytes == size
    assert max(found.used_bytes) <= capacity
    assert [transfer.is_spill for transfer in found.loads[2]] == [True]


A, B, C = tensor(0, 128, 512), tensor(1, 128, 512), tensor(2, 128, 512)


def call(op: str, *args: object) -> Node:
    return Node(op, args or (A, B), (), (C,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "engine", "opcode"),
    [
        ("aten.mm.default", Engine.TENSOR, "MATMUL"),
        ("aten.gelu.default", Engine.SCALAR, "ACTIVATE"),
        ("aten._foreach_sqrt.default", Engine.SCALAR, "ACTIVATE"),
        ("aten.embedding.default", Engine.GPSIMD, "GATHER"),
        ("aten.embedding_dense_backward.default", Engine.GPSIMD, "SCATTER"),
        ("aten.index_put_.default", Engine.GPSIMD, "SCATTER"),
        ("aten.nonzero.default", Engine.GPSIMD, "NONZERO_WITH_COUNT"),
        ("aten.tril.default", Engine.GPSIMD, "IOTA"),
        ("my_ops.relu_forward.default", Engine.GPSIMD, "CUSTOM_OP"),
        ("aten.view_copy.default", Engine.DMA, "DMA_DIRECT2D"),
        ("neurontools.all_reduce_.default", Engine.CC, "PSEUDO_TRIGGER_COLLECTIVE"),
        ("neurontools.recv_.default", Engine.CC, "PSEUDO_TRIGGER_COLLECTIVE"),
        ("aten.add_.Tensor", Engine.VECTOR, "TENSOR_TENSOR"),
        ("aten.sum.dim_IntList", Engine.VECTOR, "REDUCE"),
        ("aten.native_layer_norm.default", Engine.VECTOR, "BN_STATS"),
        ("aten.fill_.Scalar", Engine.VECTOR, "MEMSET"),
        ("aten.threshold_backward.default", Engine.VECTOR, "TENSOR_TENSOR"),
        ("aten.cumsum.default", Engine.VECTOR, "TENSOR_TENSOR_SCAN"),
    ],
)
def test_an_operator_runs_on_the_engine_of_its_family(op: str, engine: Engine, opcode: str) -> None:
    graph = graph_of(call(op), inputs=(0, 1))
    cost = estimate(graph, instance_type("trn1.2xlarge").device)
    assert (engine, opcode) in {(row.engine, row.opcode) for row in cost.rows}
    assert cost.unknown == ()


def test_a_division_is_a_multiplication_with_a_reciprocal() -> None:
    divides, multiplies, reciprocal = (
        passes_of(f"aten.{name}.default") for name in ("addcdiv", "addcmul", "reciprocal")
    )
    assert divides.pairs == multiplies.pairs + reciprocal.pairs
    assert divides.singles == multiplies.singles + reciprocal.singles
    assert divides.activations == multiplies.activations + reciprocal.activations


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten.add_.Tensor", "add"),
        ("aten._foreach_mul_.Scalar", "mul"),
        ("aten.convolution_backward_overrideable.default", "convolution"),
        ("aten.view_copy.default", "copy"),
        ("aten.transpose.int", "transpose"),
        ("aten.no_such_thing_.default", "no_such_thing"),
    ],
)
def test_a_family_stands_for_all_forms_of_an_operator(op: str, name: str) -> None:
    assert family(op) == name


@pytest.mark.parametrize("op", ["aten.view.default", "aten.t.default", "aten.empty_like.default"])
def test_views_and_uninitialised_buffers_make_no_instruction(op: str) -> None:
    assert not has_instruction(call(op))


def test_a_custom_operator_named_like_a_view_is_an_instruction() -> None:
    assert has_instruction(call("my_ops.view.default"))
