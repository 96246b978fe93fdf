"""torch_xla.core.functions: collectives that autograd differentiates."""

from __future__ import annotations

from typing import Any

import torch
from torch_xla.core import xla_model as xm

from neurontools.compat.unsupported import missing_names
from neurontools.xla.distributed import workers
from neurontools.xla.distributed.collectives import group_size

_Groups = list[list[int]] | None


__getattr__ = missing_names(__name__)


class AllReduce(torch.autograd.Function):  # type: ignore[misc]
    """Reduces over the run; the gradient is that of this process's contribution."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, reduce_type: str, scale: float, groups: _Groups
    ) -> torch.Tensor:
        """Return the reduced tensor."""
        result: torch.Tensor = xm.all_reduce(reduce_type, value, scale, groups)
        ctx.reduce_type = reduce_type
        ctx.scale = scale if group_size(groups) > 1 else 1.0
        ctx.save_for_backward(value, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of the input.

        Raises:
            RuntimeError: the reduction has no gradient.
        """
        value, result = ctx.saved_tensors
        gradient = gradient if ctx.scale == 1.0 else gradient * ctx.scale
        match ctx.reduce_type:
            case xm.REDUCE_SUM:
                return gradient, None, None, None
            case xm.REDUCE_MUL:
                factor = torch.where(value != 0, result / value, torch.zeros_like(value))
                return gradient * factor, None, None, None
            case xm.REDUCE_MIN | xm.REDUCE_MAX:
                return torch.where(value == result, gradient, torch.zeros_like(gradient)), None, None, None
        raise RuntimeError(f"Unsupported reduce type: {ctx.reduce_type}")


class AllGather(torch.autograd.Function):  # type: ignore[misc]
    """Gathers over the run; the gradient is that of this process's part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the gathered tensor."""
        ctx.dim, ctx.size = dim, value.size(dim)
        gathered: torch.Tensor = xm.all_gather(value, dim=dim)
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of the input."""
        return gradient.narrow(ctx.dim, workers.rank() * ctx.size, ctx.size).clone(), None


def all_reduce(
    reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: _Groups = None
) -> torch.Tensor:
    """Reduce a tensor over the processes of the run, or of its group."""
    result: torch.Tensor = AllReduce.apply(value, reduce_type, scale, groups)
    return result


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Concatenate the tensors of all processes along a dimension."""
    result: torch.Tensor = AllGather.apply(value, dim)
    return result


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """Multiply a weight whose columns are distributed over the processes with this process's columns of `x`.

    Args:
        w: this process's columns of the weight, N x Ko.
        x: (Ko x processes) x M.
        split: number of parts of `x` that are gathered one after another, to save memory.

    Raises:
        ValueError: the sizes do not fit.
    """
    rank, columns = workers.rank(), w.size(1)
    if x.size(0) != columns * workers.world_size() or x.size(1) % split:
        raise ValueError(
            f"distributed_mm: w is {list(w.shape)}, x is {list(x.shape)}, split is {split}: x needs "
            f"{columns * workers.world_size()} rows, and columns that split divides"
        )
    results = []
    for part in x.split(x.size(1) // split, dim=1):
        gathered = all_gather(part, dim=1).narrow(0, rank * columns, columns)
        reduced = all_reduce(xm.REDUCE_SUM, w @ gathered)
        results.append(reduced.narrow(1, rank * part.size(1), part.size(1)))
    return results[0] if len(results) == 1 else torch.cat(results, dim=1)
