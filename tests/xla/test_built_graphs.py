"""The graphs that the engine model is judged with are those that the lazy device records of the same networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from benchmarks.engine_model.builder import GraphBuilder
from benchmarks.engine_model.convolutional import batch_norm, convolve, max_pool, relu, residual_block
from benchmarks.engine_model.training import decoder_training
from benchmarks.engine_model.transformers import encoder
from neurontools.compiler.graph import Graph, Node, View, reads
from neurontools.xla import api

if TYPE_CHECKING:
    from tests.xla.conftest import InMemoryAccelerator

WIDTH, HEADS, LENGTH, BATCH, WORDS = 32, 2, 8, 2, 50


class Block(nn.Module):
    """A transformer layer, as Hugging Face's BERT (is_late) or GPT has it."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__()
        self.is_late = is_late
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH, 1e-12), nn.LayerNorm(WIDTH, 1e-12)

    def attend(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        shape = (BATCH, LENGTH, HEADS, WIDTH // HEADS)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self.is_late:
            x = self.first(self.attend(x, mask) + x)
            return self.second(self.down(F.gelu(self.up(x))) + x)
        x = x + self.attend(self.first(x), mask)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Network(nn.Module):
    """Embeddings and layers."""

    def __init__(self, *, is_late: bool, sentences: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH) if sentences else None
        self.norm = nn.LayerNorm(WIDTH, 1e-12)
        self.blocks = nn.ModuleList([Block(is_late=is_late) for _ in range(2)])


def calls(graph: Graph) -> list[str]:
    """Return the operator of each call with the shapes and types of what it reads and returns."""
    return [
        f"{node.op} {_shapes(reads(node))} -> {_shapes(tuple(v for v in node.results if v is not None))}"
        for node in graph.nodes
        if _is_work(node)
    ]


def _is_work(node: Node) -> bool:
    return not node.op.startswith(("aten.empty", "aten.detach", "aten.alias"))


def _shapes(views: tuple[View, ...]) -> str:
    return " ".join(f"{view.dtype}{list(view.shape)}" for view in views)


def record(machine: InMemoryAccelerator, step: Any) -> Graph:
    for _ in range(3):
        step()
        api.mark_step()
    return machine.graphs[-1]


def test_an_encoder(machine: InMemoryAccelerator) -> None:
    network = Network(is_late=True, sentences=True).to("xla").eval()
    pooler = nn.Linear(WIDTH, WIDTH).to("xla")
    words, seen, kinds = (torch.ones(BATCH, LENGTH, dtype=torch.int32).to("xla") for _ in range(3))
    places = torch.arange(LENGTH).view(1, LENGTH).to("xla")
    api.mark_step()
    kept = []

    def step() -> None:
        with torch.no_grad():
            mask = (1.0 - seen[:, None, None, :].to(torch.float32)) * -3.4e38
            x = network.words(words) + network.kinds(kinds) + network.places(places)
            x = network.norm(x)
            for block in network.blocks:
                x = block(x, mask.expand(BATCH, 1, LENGTH, LENGTH))
            kept[:] = [x, torch.tanh(pooler(x[:, 0]))]

    built = encoder(
        layers=2, width=WIDTH, heads=HEADS, inner=4 * WIDTH, vocabulary=WORDS, positions=LENGTH,
        batch=BATCH, length=LENGTH, fused=True,
    )  # fmt: skip
    assert calls(built) == calls(record(machine, step))


def test_a_training_step_of_a_decoder(machine: InMemoryAccelerator) -> None:
    network = Network(is_late=False, sentences=False).to("xla")
    optimizer = torch.optim.AdamW(network.parameters(), foreach=False)
    words, labels = (torch.ones(BATCH, LENGTH, dtype=torch.int64).to("xla") for _ in range(2))
    places = torch.arange(LENGTH).view(1, LENGTH).to("xla")
    api.mark_step()

    def step() -> None:
        x = network.words(words) + network.places(places)
        for block in network.blocks:
            x = block(x)
        scores = F.linear(network.norm(x), network.words.weight)
        F.cross_entropy(scores.view(-1, WORDS), labels.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    built = decoder_training(
        layers=2, width=WIDTH, heads=HEADS, vocabulary=WORDS, batch=BATCH, length=LENGTH, optimizer="adamw"
    )
    recorded = calls(record(machine, step))
    # Autograd runs independent branches in an order of its own.
    assert sorted(calls(built)) == sorted(recorded)


def test_a_residual_block(machine: InMemoryAccelerator) -> None:
    first, second, third, beside = (
        nn.Conv2d(64, 8, 1, bias=False),
        nn.Conv2d(8, 8, 3, 2, 1, bias=False),
        nn.Conv2d(8, 32, 1, bias=False),
        nn.Conv2d(64, 32, 1, 2, bias=False),
    )
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (64, 8, 8, 32, 32)])
    network = nn.ModuleList([stem, first, second, third, beside, norms]).to("xla").eval()
    pictures = torch.ones(BATCH, 3, 32, 32).to("xla")
    api.mark_step()
    kept = []

    def step() -> None:
        with torch.no_grad():
            x = F.max_pool2d(F.relu(norms[0](stem(pictures)), inplace=True), 3, 2, 1)
            y = F.relu(norms[1](first(x)), inplace=True)
            y = F.relu(norms[2](second(y)), inplace=True)
            y = norms[3](third(y))
            y += norms[4](beside(x))
            kept[:] = [F.relu(y, inplace=True)]

    assert network
    b = GraphBuilder()
    x = relu(b, batch_norm(b, convolve(b, b.input(BATCH, 3, 32, 32), 64, 7, stride=2)))
    made = residual_block(b, max_pool(b, x, 3, 2, 1), 8, 2, is_bottleneck=True)
    assert calls(b.finish(made)) == calls(record(machine, step))
