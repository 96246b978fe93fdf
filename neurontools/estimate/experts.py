"""Mixture of experts: feed-forward blocks of a layer of which each token uses some, one rank's part of each.

The token's choice is not known before it runs. It is taken to be even: every expert gets the same number of rows. With
fewer rows than experts only the chosen weights are read, as kernels of decoding do; else each expert computes its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from neurontools.estimate.parallel import add, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.estimate.parallel import RankMesh


class Experts(nn.Module):  # type: ignore[misc]
    """The experts of a layer, each split among the ranks by its inner width.

    Args:
        count: number of experts.
        width: of the residual stream.
        inner: width within an expert, of all ranks.
        activation: activation function of an expert.
        mesh: the ranks that share it.
        gated: whether an expert has a gate.
    """

    def __init__(
        self,
        count: int,
        width: int,
        inner: int,
        activation: Callable[[torch.Tensor], torch.Tensor],
        mesh: RankMesh,
        *,
        gated: bool = True,
    ) -> None:
        super().__init__()
        inner //= mesh.tensor
        self.mesh, self.activation = mesh, activation
        self.gate = nn.Parameter(torch.empty(count, width, inner)) if gated else None
        self.up = nn.Parameter(torch.empty(count, width, inner))
        self.down = nn.Parameter(torch.empty(count, inner, width))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums of the chosen experts' results.

        Args:
            x: rows, [rows, width].
            chosen: numbers of the experts of each row, [rows, experts of a row].
            shares: their weights, of the same shape.
        """
        x = split(x, self.mesh)
        compute = self._selected if chosen.numel() <= self.up.size(0) else self._shared_out
        return add(compute(x, chosen, shares.to(x.dtype)), self.mesh)

    def _selected(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        numbers = chosen.flatten()
        rows = x.repeat_interleave(chosen.size(1), 0).unsqueeze(1)
        gate = None if self.gate is None else self.gate[numbers]
        made = self._computed(rows, gate, self.up[numbers], self.down[numbers])
        return (made.view(*chosen.shape, -1) * shares.unsqueeze(-1)).sum(1)

    def _shared_out(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        count, each = self.up.size(0), chosen.size(1)
        order = F.pad(chosen.flatten().argsort(), (0, -chosen.numel() % count))
        rows = order // each
        made = self._computed(x[rows].view(count, -1, x.size(1)), self.gate, self.up, self.down)
        weighted = made.flatten(0, 1) * shares.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, rows, weighted)

    def _computed(
        self, rows: torch.Tensor, gate: torch.Tensor | None, up: torch.Tensor, down: torch.Tensor
    ) -> torch.Tensor:
        inner = torch.bmm(rows, up)
        inner = self.activation(inner) if gate is None else self.activation(torch.bmm(rows, gate)) * inner
        return torch.bmm(inner, down)


class Router(nn.Linear):  # type: ignore[misc]
    """Chooses experts by the largest scores."""

    def __init__(self, width: int, count: int, chosen: int) -> None:
        super().__init__(width, count, bias=False)
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the numbers of the experts of each row, and their weights."""
        return choose(super().forward(x), self.chosen)


def choose(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of the experts with the largest scores, and their weights, which add up to 1."""
    shares = scores.softmax(-1, dtype=torch.float32)
    chosen = shares.detach().topk(count, -1)[1]
    is_chosen = chosen.unsqueeze(-1) == torch.arange(scores.size(-1), device=scores.device)
    shares = (shares.unsqueeze(-2) * is_chosen).sum(-1)
    return chosen, shares / shares.sum(-1, keepdim=True)
