"""A feature of torch is a function that gets a device and returns what it computed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Feature = Callable[[str], Any]
FEATURES: dict[str, Feature] = {}


def feature(function: Feature) -> Feature:
    FEATURES[function.__name__] = function
    return function


def data(*shape: int, dev: str, seed: int = 1, **options: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, **options).to(dev)


def whole(*shape: int, dev: str, high: int = 10) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(2)).to(dev)
