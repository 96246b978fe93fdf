"""torch's Python functions that run operators of a graph, against the overloads they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neurontools.xla.operators import BOUND_OVERLOADS, find_overload, function_of

pytestmark = pytest.mark.torch

MATRIX = torch.tensor([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5], [6.5, 7.5, 8.5]])
STACK, ROW, PLACES = torch.stack([MATRIX, MATRIX + 1]), MATRIX[0], torch.tensor([2, 0])
IMAGE, FILTER = MATRIX.view(1, 1, 3, 3), torch.ones(2, 1, 2, 2)
OF_ONE = "neg exp log sqrt rsqrt sgn tanh sigmoid relu silu gelu sum mean ones_like zeros_like clone"
OF_TWO = "mm add.Tensor sub.Tensor mul.Tensor div.Tensor maximum"
ARGUMENTS: dict[str, list[Any]] = {
    **{name: [MATRIX] for name in OF_ONE.split()},
    **{name: [MATRIX, MATRIX.t()] for name in OF_TWO.split()},
    "addmm": [ROW, MATRIX, MATRIX],
    "bmm": [STACK, STACK],
    "baddbmm": [STACK, STACK, STACK],
    "convolution": [IMAGE, FILTER, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
    "pow.Tensor_Scalar": [MATRIX, 2.5],
    "where.self": [MATRIX > 2, MATRIX, ROW],
    "sum.dim_IntList": [MATRIX, [0], True],
    "mean.dim": [MATRIX, [1], False],
    "_softmax": [MATRIX, 1, False],
    "_log_softmax": [MATRIX, 1, False],
    "_softmax_backward_data": [MATRIX, MATRIX, 1, torch.float32],
    "_log_softmax_backward_data": [MATRIX, MATRIX, 1, torch.float32],
    "native_layer_norm": [MATRIX, [3], ROW, ROW, 1e-5],
    "native_batch_norm": [IMAGE, ROW[:1], ROW[:1], None, None, True, 0.1, 1e-5],
    "embedding": [MATRIX, PLACES],
    "cat": [[MATRIX, MATRIX], 1],
    "stack": [[MATRIX, MATRIX], 1],
}  # fmt: skip


def lists() -> dict[str, list[Any]]:
    """Return arguments of the operators on lists, whose tensors some of them change."""
    one, other, third = ([MATRIX.clone(), ROW.clone()] for _ in range(3))
    return {
        "_foreach_add.List": [one, other],
        "_foreach_sqrt": [one],
        "_foreach_add_.List": [one, other],
        "_foreach_add_.Scalar": [one, 0.5],
        "_foreach_mul_.List": [one, other],
        "_foreach_mul_.Scalar": [one, 0.5],
        "_foreach_div_.Scalar": [one, 3.0],
        "_foreach_lerp_.Scalar": [one, other, 0.25],
        "_foreach_addcmul_.Scalar": [one, other, third, 0.5],
        "_foreach_addcdiv_.Scalar": [one, other, third, 0.5],
    }


class CalledOverloads(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.overloads: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.overloads.append(func)
        return func(*args, **(kwargs or {}))


def run(name: str, *, bound: bool) -> tuple[list[Any], Any]:
    """Run an overload; return what it called, and its results or the tensors that it changed."""
    overload = find_overload(f"aten::{name}")
    arguments = ({**ARGUMENTS, **lists()})[name]
    with CalledOverloads() as called:
        found = (function_of(overload) if bound else overload._op)(*arguments)
    return called.overloads, arguments[0] if found is None else found


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


@pytest.mark.parametrize("name", sorted(BOUND_OVERLOADS))
def test_a_binding_runs_the_overload_and_nothing_else(name: str) -> None:
    overload = find_overload(f"aten::{name}")
    assert function_of(overload) is not overload._op
    (called, found), (_, expected) = run(name, bound=True), run(name, bound=False)
    assert called == [overload]
    assert all(torch.equal(*pair) for pair in zip(flat(found), flat(expected), strict=True))


@pytest.mark.parametrize("name", ["aten::add.Scalar", "aten::nll_loss_forward", "aten::relu_"])
def test_other_overloads_are_called_by_their_schema(name: str) -> None:
    overload = find_overload(name)
    assert function_of(overload) is overload._op
