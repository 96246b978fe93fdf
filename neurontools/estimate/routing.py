"""Experts of transformers' models in the form of `experts`: transformers chooses them by values, which no graph has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neurontools.estimate.experts import Experts, choose

if TYPE_CHECKING:
    from neurontools.estimate.parallel import RankMesh


class EvenlyRouted(nn.Module):  # type: ignore[misc]
    """A block of experts in place of one of transformers; it has its router and its shared experts.

    Routers are linear layers, of blocks that return the scores too, or modules that choose themselves.
    """

    def __init__(self, block: Any, mesh: RankMesh) -> None:
        super().__init__()
        first = block.experts[0]
        up = first.w3 if hasattr(first, "w3") else first.up_proj
        self.gate, self.count = block.gate, getattr(block, "top_k", 0)
        activation = getattr(first, "act_fn", None) or first.activation_fn
        self.experts = Experts(len(block.experts), up.in_features, up.out_features, activation, mesh)
        self.shared = getattr(block, "shared_expert", None) or getattr(block, "shared_experts", None)
        self.shared_gate = getattr(block, "shared_expert_gate", None)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the block's result, and the router's scores where the block that it replaces does."""
        rows = x.reshape(-1, x.size(-1))
        is_linear = isinstance(self.gate, nn.Linear)
        scores = self.gate(rows if is_linear else x)
        made = self.experts(rows, *(choose(scores, self.count) if is_linear else scores[:2]))
        if self.shared is not None:
            beside = self.shared(rows)
            made = made + (beside if self.shared_gate is None else self.shared_gate(rows).sigmoid() * beside)
        made = made.view(x.shape)
        return (made, scores) if is_linear else made


def route_evenly(model: nn.Module, mesh: RankMesh) -> None:
    """Replace the blocks of a model whose experts are chosen by values."""
    for name, block in list(model.named_modules()):
        if isinstance(getattr(block, "experts", None), nn.ModuleList) and hasattr(block, "gate"):
            model.set_submodule(name, EvenlyRouted(block, mesh))
