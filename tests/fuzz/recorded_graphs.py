"""Graphs that real programs record: training steps and predictions of small models."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from neurontools.compiler.graph import Graph, reads
from neurontools.xla import api
from neurontools.xla.neff_checks import unlisted_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.xla.conftest import InMemoryAccelerator

_WIDTH = 8


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, _WIDTH)
        self.cells = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)
        self.gates = nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.scores = nn.Linear(_WIDTH, 5)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.gates(self.cells(self.words(numbers))[0])[0][:, -1])
        return scores


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        parts = self.into(self.norm(rows)).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed: torch.Tensor = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return mixed.transpose(1, 2).reshape(2, 6, _WIDTH).mean(1)


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.GroupNorm(2, 6), nn.GELU(),
        nn.Conv2d(6, 4, 3, stride=2), nn.BatchNorm2d(4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip


def _pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AvgPool2d(2), nn.ReflectionPad2d(1), nn.PixelUnshuffle(2), nn.Flatten(),
    )  # fmt: skip


def _indexed(rows: torch.Tensor) -> torch.Tensor:
    order = rows.argsort(1)
    largest, places = rows.topk(3, 1)
    spread = torch.zeros_like(rows).scatter_add(1, places, largest)
    table = rows.gather(1, order).index_select(1, places[0]).cumsum(1)
    rows[:, places[1]] += 1
    picked = rows[:, order[0]].masked_fill(spread > 0, 2.0).index_add(1, order[0], rows)
    return torch.cat([spread, table, picked.flip(1), rows.clone().index_fill_(1, places[0], 1.0)], 1)


def _numeric(rows: torch.Tensor) -> torch.Tensor:
    square = rows.t() @ rows + torch.eye(_WIDTH, device=rows.device)
    left, sizes, _ = torch.linalg.svd(square)
    parts = [
        torch.linalg.inv(square),
        torch.linalg.cholesky(square),
        left * sizes,
        square.var(0, keepdim=True),
    ]
    whole = torch.arange(_WIDTH, device=rows.device) // 3 * 2 % 5
    image = functional.interpolate(rows.view(1, 1, 4, _WIDTH), size=(3, 3), mode="bicubic").sum()
    grid = functional.grid_sample(
        rows.view(1, 1, 4, _WIDTH), rows.view(1, 4, 4, 2), align_corners=False
    ).sum()
    return torch.cat([part.reshape(-1) for part in parts]).logsumexp(0) + whole.sum() + image + grid


def _train(model: nn.Module, optimizer: type[Any], inputs: torch.Tensor, **settings: Any) -> None:
    device = torch.device("xla")
    model.to(device)
    chosen = optimizer(model.parameters(), **settings)
    for _ in range(3):
        chosen.zero_grad()
        loss = functional.cross_entropy(
            model(inputs.to(device)), torch.tensor([1, 3], device=device), label_smoothing=0.1
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
        api.mark_step()


def _predict(model: Callable[[Any], Any], *inputs: torch.Tensor) -> None:
    device = torch.device("xla")
    if isinstance(model, nn.Module):
        model.to(device).eval()
    with torch.no_grad():
        for _ in range(2):
            model(*(tensor.to(device) for tensor in inputs)).tolist()


def _run_programs() -> None:
    image, rows, words = torch.rand(2, 3, 9, 9), torch.rand(2, 6, _WIDTH), torch.randint(11, (2, 6))
    layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, batch_first=True)
    pooled = nn.Sequential(layer, nn.AdaptiveAvgPool1d(5), nn.Flatten())
    _train(_convolutional(), torch.optim.SGD, image, lr=0.1, momentum=0.9)
    _train(pooled, torch.optim.AdamW, rows, lr=0.01)
    _train(_Attention(), torch.optim.Adam, rows, lr=0.01)
    _train(_Recurrent(), torch.optim.RMSprop, words, lr=0.01, momentum=0.5)
    _train(_Recurrent(), torch.optim.Adagrad, words, lr=0.01, foreach=False)
    _train(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(48, 5)), torch.optim.NAdam, rows)
    _predict(_convolutional(), image)
    _predict(_pooled(), image)
    _predict(pooled, rows)
    _predict(_Attention().bfloat16(), rows.bfloat16())
    _predict(_convolutional().bfloat16(), image.bfloat16())
    _predict(nn.EmbeddingBag(11, _WIDTH, mode="mean"), words)
    _predict(_indexed, torch.rand(4, _WIDTH))
    _predict(_numeric, torch.rand(4, _WIDTH))


def record_graphs(accelerator: InMemoryAccelerator) -> list[Graph]:
    """Return the graphs that the programs record on the device's accelerator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _run_programs()
    return accelerator.graphs


def listed_part(graph: Graph) -> Graph:
    """Return a graph without the calls that a NEFF of another process may not make, and without what they lead to."""
    unlisted, known = set(unlisted_operators(graph)), set(graph.inputs)
    nodes = []
    for node in graph.nodes:
        if node.op not in unlisted and all(view.slot in known for view in reads(node)):
            nodes.append(node)
            known.update(view.slot for view in node.results if view is not None)
    return Graph(
        graph.slots,
        graph.inputs,
        graph.lifted,
        tuple(nodes),
        tuple(slot for slot in graph.outputs if slot in known),
    )


def listed_graphs(accelerator: InMemoryAccelerator) -> Iterator[Graph]:
    """Yield each recorded graph that has calls, as `listed_part` leaves it."""
    seen = set()
    for graph in record_graphs(accelerator):
        part = listed_part(graph)
        if part.nodes and part.outputs and part.digest() not in seen:
            seen.add(part.digest())
            yield part
