"""Scaled dot-product attention by the kernel that the CPU takes, so that a model gives the same bits on both.

torch sends a device without a C++ attention stub down the unfused path, whose sums differ in the last bits.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from typing import Any

import torch

_FLASH = 1
_choices: dict[Any, int] = {}


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute attention; the composite kernel of aten::scaled_dot_product_attention on this device."""
    choice = _choice(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
    if choice == _FLASH:
        result: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
        return result
    unfused: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return unfused


def _choice(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> int:
    tensors = (query, key, value, attn_mask)
    signature = tuple(
        None if t is None else (t.dtype, tuple(t.shape), tuple(t.stride()), t.requires_grad) for t in tensors
    )
    situation = (signature, dropout_p > 0, is_causal, scale, enable_gqa, torch.is_grad_enabled())
    choice = _choices.get(situation)
    if choice is None:
        hosts = [None if t is None else _like(t) for t in tensors]
        choice = _choices[situation] = torch._fused_sdp_choice(
            hosts[0], hosts[1], hosts[2], hosts[3], dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return choice


def _like(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return host.requires_grad_(tensor.requires_grad)
