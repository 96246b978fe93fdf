"""FLOPs against torch's own counter, on operators as torch dispatches them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.graph import Graph, Node, Slot, View
from neurontools.compiler.work import MatMul, products, written
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import tensor

if TYPE_CHECKING:
    from collections.abc import Callable


class Recorder(TorchDispatchMode):
    """Records what torch dispatches as nodes of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.slots: list[Slot] = []
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = tuple(self._arg(arg) for arg in args)
        made = func(*args, **(kwargs or {}))
        results = made if isinstance(made, tuple | list) else (made,)
        views = tuple(self._arg(one) if isinstance(one, torch.Tensor) else None for one in results)
        self.nodes.append(Node(str(func), arguments, (), views))  # type: ignore[arg-type]
        return made

    def _arg(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return self._view(arg)
        if isinstance(arg, list | tuple):
            return tuple(self._arg(item) for item in arg)
        return arg if isinstance(arg, bool | int | float | str) or arg is None else str(arg)

    def _view(self, value: torch.Tensor) -> View:
        storage = value.untyped_storage()
        number = next((n for n, kept in enumerate(self._kept) if kept._cdata == storage._cdata), None)
        if number is None:
            number = len(self._kept)
            self._kept.append(storage)
            self.slots.append(Slot(storage.nbytes()))
        dtype = str(value.dtype).removeprefix("torch.")
        return View(number, dtype, tuple(value.shape), value.stride(), value.storage_offset())

    def graph(self) -> Graph:
        return Graph(tuple(self.slots), (), 0, tuple(self.nodes), ())


def mlp_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.Linear(30, 5))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 20)), torch.randint(5, (8,)))
    loss.backward()
    optimizer.step()


def convolutions() -> None:
    images = torch.randn(2, 4, 9, 9, requires_grad=True)
    made = torch.nn.functional.conv2d(images, torch.randn(6, 4, 3, 3, requires_grad=True), stride=2)
    torch.nn.functional.conv_transpose2d(made, torch.randn(6, 3, 2, 2, requires_grad=True)).sum().backward()


def attention() -> None:
    query, key, value = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()


def batches() -> None:
    torch.baddbmm(torch.randn(3, 4, 6), torch.randn(3, 4, 5), torch.randn(3, 5, 6))
    torch.bmm(torch.randn(3, 4, 5), torch.randn(3, 5, 6))


@pytest.mark.parametrize("step", [mlp_step, convolutions, batches])
def test_matmul_flops_equal_those_of_torch(step: Callable[[], None]) -> None:
    recorder = Recorder()
    counter = FlopCounterMode(display=False)
    torch.manual_seed(0)
    with counter, recorder:
        step()
    cost = estimate(recorder.graph(), instance_type("trn1.2xlarge").device)
    assert cost.matmul_flops == counter.get_total_flops() > 0


def test_attention_is_two_products_forward_and_five_back() -> None:
    recorder = Recorder()
    with recorder:
        attention()
    cost = estimate(recorder.graph(), instance_type("trn1.2xlarge").device)
    assert cost.matmul_flops == 7 * MatMul(2 * 3, 16, 8, 16).flops


def test_a_whole_training_step_has_a_schedule() -> None:
    recorder = Recorder()
    torch.manual_seed(0)
    with recorder:
        mlp_step()
    cost = estimate(recorder.graph(), instance_type("trn1.2xlarge").device)
    assert {op.engine.value for op in cost.ops} >= {"Tensor", "Vector", "Scalar", "DMA"}
    assert all(op.duration_ns > 0 for op in cost.ops)


def test_a_list_operator_counts_every_tensor() -> None:
    from neurontools.compiler.work import flops

    pairs = (tensor(0, 10), tensor(1, 20)), (tensor(2, 10), tensor(3, 20))
    assert flops(Node("aten._foreach_add_.List", pairs, (), ())) == 30


def test_linear_transposes_its_weight() -> None:
    node = Node("aten.linear.default", (tensor(0, 8, 20), tensor(1, 30, 20)), (), (tensor(2, 8, 30),))
    assert products(node) == (MatMul(1, 8, 20, 30),)


@pytest.mark.parametrize(
    ("left", "right", "made", "product"),
    [
        ((10, 32), (4, 32, 16), (10, 16), MatMul(4, 3, 32, 16)),
        ((4, 8, 32), (4, 32, 16), (4, 8, 16), MatMul(4, 8, 32, 16)),
        ((4, 8, 32), (32, 16), (8, 16), MatMul(4, 8, 32, 4)),
        ((8, 32), (32, 16), (4, 8, 16), MatMul(4, 8, 8, 16)),
    ],
)
def test_products_of_experts_share_rows_columns_or_the_contraction(
    left: tuple[int, ...], right: tuple[int, ...], made: tuple[int, ...], product: MatMul
) -> None:
    for operator in ("_grouped_mm", "_scaled_grouped_mm"):
        operands = tensor(0, *left), tensor(1, *right), tensor(2, 4)
        node = Node(f"aten.{operator}.default", operands, (), (tensor(3, *made),))
        assert products(node) == (product,)


def test_products_of_experts_run_on_the_tensor_engine() -> None:
    recorder = Recorder()
    ends = torch.tensor([2, 8], dtype=torch.int32)
    with recorder:
        torch._grouped_mm(torch.randn(8, 32), torch.randn(2, 32, 16), offs=ends)
    cost = estimate(recorder.graph(), instance_type("trn2.3xlarge").device)
    assert cost.matmul_flops == MatMul(1, 8, 32, 16).flops


def test_a_tensor_given_as_out_is_written() -> None:
    x, y, out = tensor(0, 4), tensor(1, 4), tensor(2, 4)
    node = Node("aten.add.out", (x, y), (("alpha", y), ("out", out)), (out,))
    assert written(Node(node.op, node.args, node.kwargs, ())) == (out,)
    assert written(node) == (out,)
    assert written(Node("aten.add_.Tensor", (x, y), (), ())) == (x,)


@pytest.mark.parametrize(
    ("op", "flag", "changes"),
    [
        ("native_batch_norm.default", True, True),
        ("native_batch_norm.default", False, False),
        ("_native_batch_norm_legit.default", False, False),
        ("_batch_norm_with_update.default", False, True),
        ("native_batch_norm_backward.default", True, False),
    ],
)
def test_running_statistics_change_in_training(op: str, flag: bool, changes: bool) -> None:
    x, weight, bias, mean, variance, y = (tensor(slot, 4) for slot in range(6))
    node = Node(f"aten.{op}", (x, weight, bias, mean, variance, flag, 0.1), (), (y,))
    assert written(node) == ((y, mean, variance) if changes else (y,))
