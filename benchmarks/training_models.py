"""The models that are trained on the device and on the CPU: an MLP, a CNN and a GPT."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

Model = tuple[nn.Module, torch.Tensor, torch.Tensor, int]
"""A model, its batch, and the steps of a block."""


class Attention(nn.Module):
    """A block of a GPT: attention and two layers, each with its norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        parts = self.inputs(self.norms[0](x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(found.transpose(1, 2).flatten(2))
        return x + self.layers(self.norms[1](x))


def mlp() -> Model:
    """Return the MLP of the MNIST tutorial, its batch, and the steps of a block."""
    layers = nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    return nn.Sequential(*layers), torch.randn(32, 784), torch.randint(0, 10, (32,)), 60


def cnn() -> Model:
    """Return a small convolutional network."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        convolution = nn.Conv2d(before, after, 3, padding=1)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 49, 10))
    return model, torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,)), 20


def gpt() -> Model:
    """Return a GPT of 2.5 million parameters."""
    blocks = (Attention(192, 6) for _ in range(4))
    model = nn.Sequential(nn.Embedding(2000, 192), *blocks, nn.LayerNorm(192), nn.Linear(192, 2000))
    return model, torch.randint(0, 2000, (8, 64)), torch.randint(0, 2000, (8, 64)), 4


MODELS = {make.__name__: make for make in (mlp, cnn, gpt)}
