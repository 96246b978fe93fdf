"""`torch._scaled_grouped_mm` on the host: torch has this product of experts with scaled operands for GPUs only.

Source: AWS Neuron documentation, "Native PyTorch for AWS Trainium" (operations of mixtures of experts).
"""

from __future__ import annotations

import torch

_NAME = "_scaled_grouped_mm"
_registered: list[torch.library.Library] = []  # torch forgets the kernel with this object


def install() -> None:
    """Give torch the kernel for the CPU that graphs of the device run, unless it has one."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_NAME}", "CPU"):  # noqa: SLF001
        library = torch.library.Library("aten", "IMPL")
        library.impl(_NAME, _multiply, "CPU")
        _registered.append(library)


def _multiply(
    left: torch.Tensor,
    right: torch.Tensor,
    left_scale: torch.Tensor,
    right_scale: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,  # noqa: ARG001  torch's signature
) -> torch.Tensor:
    """Multiply matrices group by group; each row of `left` and each column of `right` has a scale.

    Args:
        left: [G, M, K], or [M, K] whose rows are in groups, or whose columns are if `right` is a matrix too.
        right: [G, K, N], or [K, N] whose columns or rows are in groups.
        left_scale: [G, M], [M], or [G * M] if both are matrices.
        right_scale: [G, N], [N], or [G * N] if both are matrices.
        offs: where each group ends, [G].
        bias: added to the product.
        scale_result: multiplies the result.
        out_dtype: of the result; bfloat16 by default.
        use_fast_accum: sums are always in float32.
    """
    if left.dim() == right.dim() == 2:
        product = torch._grouped_mm(left.float(), right.float(), offs=offs)  # noqa: SLF001
        groups, rows, columns = product.shape
        product *= left_scale.view(groups, rows, 1) * right_scale.view(groups, 1, columns)
    else:
        scaled = left.float() * left_scale.unsqueeze(-1), right.float() * right_scale.unsqueeze(-2)
        product = torch._grouped_mm(*scaled, offs=offs)  # noqa: SLF001
    if bias is not None:
        product = product + bias
    if scale_result is not None:
        product = product * scale_result
    return product.to(out_dtype or torch.bfloat16)
