"""Transforms of images in [0, 255] or tensors in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.compat.unsupported import missing_names


class Compose:
    """Apply transforms one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """Turn a uint8 image of (H, W) into a float tensor of (1, H, W) in [0, 1]."""

    def __call__(self, image: Any) -> torch.Tensor:
        pixels = torch.as_tensor(image)
        return (
            pixels.to(torch.float32).div(255).unsqueeze(0) if pixels.dim() == 2 else pixels.to(torch.float32)
        )


class Normalize:
    """Subtract a mean and divide by a standard deviation per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std


class Lambda:
    """Apply a function."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        return self.lambd(image)


__getattr__ = missing_names(__name__)
