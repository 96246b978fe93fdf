"""Linear layers and experts whose weights are stored in 8 bits, with a scale for each output."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from neurontools.estimate.experts import Experts

TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class StoredLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer that widens its weights before the product, and scales its results."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's results."""
        made = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return made if self.bias is None else made + self.bias


class StoredExperts(Experts):
    """Experts that widen their weights before the products, and scale their results."""

    def _computed(self, rows: torch.Tensor, gate: Any, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        wide = [None if each is None else each.to(rows.dtype) for each in (gate, up, down)]
        inner = torch.bmm(rows, wide[1]) * self.scale
        gates = inner if wide[0] is None else torch.bmm(rows, wide[0]) * self.scale
        inner = self.activation(gates) if wide[0] is None else self.activation(gates) * inner
        return torch.bmm(inner, wide[2]) * self.scale


def store_weights(model: nn.Module, kind: str) -> None:
    """Store the weights of linear layers and experts in another type; those of embeddings stay as they are."""
    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in list(model.modules()):
        if type(module) is nn.Linear and id(module.weight) not in shared:
            module.__class__ = StoredLinear
            module.register_buffer("scale", module.weight.new_empty(module.out_features))
            module.weight = _stored(module.weight, kind)
        elif type(module) is Experts:
            module.__class__ = StoredExperts
            module.register_buffer("scale", module.up.new_empty(()))
            for name in ("gate", "up", "down"):
                if getattr(module, name) is not None:
                    setattr(module, name, _stored(getattr(module, name), kind))


def _stored(weight: torch.Tensor, kind: str) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, dtype=TYPES[kind]), requires_grad=False)
