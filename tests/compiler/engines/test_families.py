from __future__ import annotations

import pytest

from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.lowering.families import family, has_instruction, passes_of
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.graph import Node
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import graph_of, tensor

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
