"""Imports torch for the shims; without it, the error says how to install it."""

from __future__ import annotations

from neurontools.errors import TORCH_REMEDY

try:
    import torch
except ModuleNotFoundError:
    raise ModuleNotFoundError(f"No module named 'torch': {TORCH_REMEDY}", name="torch") from None

__all__ = ["torch"]
