from __future__ import annotations

import pytest

from neurontools.compiler.engines.placement import Engine, has_instruction, place
from neurontools.compiler.graph import Node
from tests.compiler.graphs import tensor

A, B, C = tensor(0, 4, 4), tensor(1, 4, 4), tensor(2, 4, 4)


def call(op: str, *args: object) -> Node:
    return Node(op, args or (A, B), (), (C,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "engine", "opcode"),
    [
        ("aten.mm.default", Engine.TENSOR, "MATMUL"),
        ("aten.addmm.default", Engine.TENSOR, "MATMUL"),
        ("aten.convolution_backward.default", Engine.TENSOR, "MATMUL"),
        ("aten.convolution_backward_overrideable.default", Engine.TENSOR, "MATMUL"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", Engine.TENSOR, "MATMUL"),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", Engine.TENSOR, "MATMUL"),
        ("aten.gelu.default", Engine.SCALAR, "ACTIVATE"),
        ("aten.tanh_backward.default", Engine.SCALAR, "ACTIVATE"),
        ("aten._log_softmax_backward_data.default", Engine.SCALAR, "ACTIVATE"),
        ("aten._foreach_sqrt.default", Engine.SCALAR, "ACTIVATE"),
        ("aten.embedding.default", Engine.GPSIMD, "GATHER"),
        ("aten.embedding_dense_backward.default", Engine.GPSIMD, "SCATTER"),
        ("aten.index_put_.default", Engine.GPSIMD, "SCATTER"),
        ("aten.nonzero.default", Engine.GPSIMD, "NONZERO_WITH_COUNT"),
        ("my_ops.relu_forward.default", Engine.GPSIMD, "CUSTOM_OP"),
        ("aten.copy_.default", Engine.DMA, "DMA_DIRECT2D"),
        ("aten._foreach_copy_.default", Engine.DMA, "DMA_DIRECT2D"),
        ("aten.view_copy.default", Engine.DMA, "DMA_DIRECT2D"),
        ("neurontools.all_reduce_.default", Engine.DMA, "PSEUDO_TRIGGER_COLLECTIVE"),
        ("neurontools.collective_permute.default", Engine.DMA, "PSEUDO_TRIGGER_COLLECTIVE"),
        ("neurontools.recv_.default", Engine.DMA, "PSEUDO_TRIGGER_COLLECTIVE"),
        ("aten.add_.Tensor", Engine.VECTOR, "TENSOR_TENSOR"),
        ("aten.sum.dim_IntList", Engine.VECTOR, "REDUCE"),
        ("aten.native_layer_norm.default", Engine.VECTOR, "REDUCE"),
        ("aten.fill_.Scalar", Engine.VECTOR, "MEMSET"),
        ("aten.threshold_backward.default", Engine.VECTOR, "TENSOR_TENSOR"),
    ],
)
def test_an_operator_runs_on_the_engine_of_its_family(op: str, engine: Engine, opcode: str) -> None:
    placement = place(call(op))
    assert (placement.engine, placement.opcode) == (engine, opcode)


def test_one_operand_and_a_number_is_a_scalar_instruction() -> None:
    assert place(call("aten.mul.Scalar", A, 2.0)).opcode == "SCALAR"


@pytest.mark.parametrize("op", ["aten.view.default", "aten.t.default", "aten.empty_like.default"])
def test_views_and_uninitialised_buffers_make_no_instruction(op: str) -> None:
    assert not has_instruction(call(op))


def test_a_custom_operator_named_like_a_view_is_an_instruction() -> None:
    assert has_instruction(call("my_ops.view.default"))


def test_a_core_without_gpsimd_uses_its_vector_engine() -> None:
    assert place(call("aten.embedding.default"), has_gpsimd=False).engine is Engine.VECTOR
