"""LSTM and GRU cells: torch asks devices for fused ones; here they are composites of recorded operators."""

from __future__ import annotations

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden state, cell state and an unused workspace."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    entering, forgetting, cell, leaving = gates.chunk(4, 1)
    cy = forgetting.sigmoid() * cx + entering.sigmoid() * cell.tanh()
    return leaving.sigmoid() * cy.tanh(), cy, gates.detach()


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> Pair:
    """Return hidden state and an unused workspace."""
    from_input = _biased(input_gates, input_bias).chunk(3, 1)
    from_hidden = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    reset = (from_hidden[0] + from_input[0]).sigmoid()
    update = (from_hidden[1] + from_input[1]).sigmoid()
    new = (from_input[2] + from_hidden[2] * reset).tanh()
    return (hx - new) * update + new, reset.detach()


def _biased(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias
