"""torch_xla.experimental.custom_kernel: fused attention (PyTorch/XLA documentation, "Custom kernels via Pallas")."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.compat.unsupported import missing_names

__getattr__ = missing_names(__name__)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """Return softmax(sm_scale * q k^T + ab) v, which is one operator of the graph.

    Args:
        q: queries, [batch, heads, length, width].
        k: keys.
        v: values.
        causal: whether positions see earlier ones and themselves alone.
        q_segment_ids: segment of each query, [batch, length]; it sees the keys of its own segment alone.
        kv_segment_ids: segment of each key.
        sm_scale: factor of the scores; not 1 / sqrt(width) by default, as in torch_xla.
        ab: added to the scores.
        partition_spec: how the tensors are spread over `mesh`, which has one device.
        mesh: a `spmd.Mesh`.
    """
    mask = ab
    if q_segment_ids is not None and kv_segment_ids is not None:
        apart = q_segment_ids[:, None, :, None] != kv_segment_ids[:, None, None, :]
        bias = torch.zeros(apart.shape, dtype=q.dtype, device=q.device) if ab is None else ab
        mask = bias.masked_fill(apart, float("-inf"))
    if causal and mask is not None:
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        mask = mask.masked_fill(later, float("-inf"))
        causal = False
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, attn_mask=mask, is_causal=causal, scale=sm_scale)
