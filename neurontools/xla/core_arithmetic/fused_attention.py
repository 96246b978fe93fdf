"""Fused attention with the operands of its matrix products cast, as `--auto-cast` does; the rest is float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neurontools.xla.operators import Operator

    Cast = Callable[[torch.Tensor], torch.Tensor]

_BACKWARD = "_backward"


def attention_with_casts(
    operator: Operator, cast: Cast, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    """Run torch's fused attention for the CPU, or its backward pass, on float32 tensors.

    Args:
        operator: the forward or the backward operator.
        cast: rounds an operand of a matrix product.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    names = [parameter.name for parameter in operator.parameters]
    values = dict(zip(names, args, strict=False)) | dict(kwargs)
    if operator.name.endswith(_BACKWARD):
        return _backward(cast, values)
    return _forward(cast, values)


def _forward(cast: Cast, values: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    query, key = cast(values["query"]), cast(values["key"])
    scores = _scores(query, key, values)
    logsumexp = scores.logsumexp(-1)
    probabilities = _probabilities(scores, logsumexp)
    out = cast(probabilities) @ cast(values["value"])
    # Here and below, strides match those of torch's kernel, because programs see them.
    return torch.empty_like(query).copy_(out), _with_heads_inside(logsumexp)


def _backward(cast: Cast, values: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    query, key = cast(values["query"]), cast(values["key"])
    grad_out = cast(values["grad_out"])
    probabilities = _probabilities(_scores(query, key, values), values["logsumexp"])
    grad_value = cast(probabilities).mT @ grad_out
    grad_probabilities = grad_out @ cast(values["value"]).mT
    correction = (values["grad_out"] * values["out"]).sum(-1, keepdim=True)
    grad_scores = cast(probabilities * (grad_probabilities - correction) * _scale(values))
    grads = (grad_scores @ key, grad_scores.mT @ query, grad_value)
    return tuple(map(_with_heads_inside, grads))


def _scores(query: torch.Tensor, key: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    scores = query @ key.mT * _scale(values)
    if values.get("is_causal"):
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    mask = values.get("attn_mask")
    return scores if mask is None else scores + mask


def _probabilities(scores: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    # A row without a visible key has a logsumexp of -inf.
    return (scores - logsumexp.unsqueeze(-1)).exp().nan_to_num(0)


def _scale(values: Mapping[str, Any]) -> float:
    scale = values.get("scale")
    return float(1 / math.sqrt(values["query"].size(-1)) if scale is None else scale)


def _with_heads_inside(result: torch.Tensor) -> torch.Tensor:
    """Return a result in the order batch, sequence, head."""
    return result.transpose(1, 2).contiguous().transpose(1, 2)
