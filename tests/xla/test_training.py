"""Models train to the same bits as on the CPU, on few graphs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from neurontools.xla import api
from neurontools.xla.debugging import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xla.conftest import InMemoryAccelerator


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.ops.neuron_train.relu_forward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.ops.neuron_train.relu_backward(grad, x)


class CustomOpMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(36, 12), nn.Linear(12, 10), nn.Linear(10, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = Relu.apply(layer(x))
        return F.log_softmax(self.layers[-1](x), dim=1)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)
        )
        self.head = nn.Linear(4 * 9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.head(self.body(x).flatten(1)), dim=1)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(10, 8), nn.Embedding(36, 8)
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.wide, self.narrow, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x.flatten(1).abs() * 3).long().clamp(0, 9)
        h = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=x.device))
        q, k, v = (
            t.view(*t.shape[:2], 2, 4).transpose(1, 2) for t in self.qkv(self.norm1(h)).split(8, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(attended.transpose(1, 2).reshape(h.shape))
        h = h + self.narrow(F.dropout(F.gelu(self.wide(self.norm2(h))), 0.1, self.training))
        return F.log_softmax(self.head(h.mean(1)), dim=1)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw_loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}
MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": CustomOpMlp, "cnn": Cnn, "transformer": Transformer}


@pytest.fixture(scope="module", autouse=True)
def custom_relu() -> Any:
    library = torch.library.Library("neuron_train", "DEF")
    library.define("relu_forward(Tensor x) -> Tensor")
    library.define("relu_backward(Tensor grad, Tensor x) -> Tensor")
    library.impl("relu_forward", lambda x: x.clamp(min=0), "CPU")
    library.impl("relu_backward", lambda grad, x: grad * (x > 0), "CPU")
    yield library
    library._destroy()


def train(
    start: nn.Module, make_optimizer: Any, device: str, batches: list[int]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    model = copy.deepcopy(start).to(device)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for number, rows in enumerate(batches):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(rows, 1, 6, 6, generator=generator).to(device)
        labels = torch.randint(0, 4, (rows,), generator=generator).to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), labels)
        loss.backward()
        optimizer.step()
        if device != "cpu":
            api.mark_step()
        losses.append(loss)
    return [loss.item() for loss in losses], {k: v.cpu() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("model", MODELS)
def test_trains_to_the_same_bits_as_the_cpu(machine: InMemoryAccelerator, model: str, optimizer: str) -> None:
    torch.manual_seed(4)
    start = MODELS[model]()
    batches = [8] * 6 + [3] + [8] * 3
    wanted = train(start, OPTIMIZERS[optimizer], "cpu", batches)
    got = train(start, OPTIMIZERS[optimizer], "xla", batches)
    assert got[0] == wanted[0]
    assert all(torch.equal(value, wanted[1][name]) for name, value in got[1].items())
    fallbacks = [
        name for name in metrics.counter_names() if "::" in name and name != "aten::_local_scalar_dense"
    ]
    assert fallbacks == []
    # First step of the optimizer, further steps, partial batch.
    assert len(machine.graphs) <= 3
    assert machine.executions == len(batches)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_gives_the_same_bits_as_the_cpu(machine: InMemoryAccelerator, optimizer: str) -> None:
    torch.manual_seed(4)
    start = CustomOpMlp()
    wanted = train(start, OPTIMIZERS[optimizer], "cpu", [4] * 5)
    got = train(start, OPTIMIZERS[optimizer], "xla", [4] * 5)
    assert got[0] == wanted[0]
    assert all(torch.equal(value, wanted[1][name]) for name, value in got[1].items())
    assert len(machine.graphs) <= 2


def test_evaluation_without_gradients_counts_right_answers(machine: InMemoryAccelerator) -> None:
    torch.manual_seed(4)
    model = Cnn().eval()
    on_device = copy.deepcopy(model).to("xla")
    right = {"cpu": 0, "xla": 0}
    for number in range(3):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(8, 1, 6, 6, generator=generator)
        labels = torch.randint(0, 4, (8,), generator=generator)
        with torch.no_grad():
            for device, net in (("cpu", model), ("xla", on_device)):
                right[device] += int(sum(net(x.to(device)).argmax(1) == labels.to(device)))
    assert right["cpu"] == right["xla"]
    assert len(machine.graphs) == 1


def test_an_optimizer_resumes_from_its_saved_state(machine: InMemoryAccelerator) -> None:
    torch.manual_seed(4)
    start = CustomOpMlp()

    def halves(device: str) -> dict[str, torch.Tensor]:
        model = copy.deepcopy(start).to(device)
        first = torch.optim.AdamW(model.parameters(), lr=0.01)
        x = torch.ones(4, 1, 6, 6).to(device)
        for optimizer in (first, torch.optim.AdamW(model.parameters(), lr=0.01)):
            if optimizer is not first:
                optimizer.load_state_dict(first.state_dict())
            for _ in range(2):
                optimizer.zero_grad()
                model(x).pow(2).sum().backward()
                optimizer.step()
                if device == "xla":
                    api.mark_step()
        return {name: value.cpu() for name, value in model.state_dict().items()}

    wanted = halves("cpu")
    assert all(torch.equal(value, wanted[name]) for name, value in halves("xla").items())


def test_operators_on_lists_change_the_versions_of_their_tensors(machine: InMemoryAccelerator) -> None:
    changed = torch.ones(2, device="xla").requires_grad_()
    copy_of_it = changed * 1
    product = copy_of_it * copy_of_it
    with torch.no_grad():
        torch._foreach_add_([copy_of_it], 1)
    assert copy_of_it._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
