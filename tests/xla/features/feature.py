"""A feature of torch is a function that gets a device and returns what it computed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Feature = Callable[[str], Any]
FEATURES: dict[str, Feature] = {}

torch_warns = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script:DeprecationWarning",
    "ignore:Attempted to insert a get_attr Node",
    "ignore:An output with one or more elements was resized",
    "ignore:The PyTorch API of nested tensors is in prototype stage",
)
"""For tests of all features: torch's own decompositions and its linearize warn, and it warns on the CPU too."""


def feature(function: Feature) -> Feature:
    FEATURES[function.__name__] = function
    return function


def data(*shape: int, dev: str, seed: int = 1, **options: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, **options).to(dev)


def whole(*shape: int, dev: str, high: int = 10) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(2)).to(dev)
