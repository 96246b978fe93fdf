"""Functions that libraries write against XLA's builder, as torch operators: slices, random numbers, markers, fused operators.

Source: the use of these names in aws-neuron/neuronx-distributed and neuronx-distributed-inference.
"""

# ruff: noqa: N802
# Names of the builder.

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UNIFORM = 1


def xla_hlo_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that runs what a function builds as HLO."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        wrapped = [HloTensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        return _unwrap(function(*wrapped, **options))

    return call


class HloTensor:
    """A tensor in a function that builds HLO."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.sizes = tuple(tensor.shape)
        self.dtype = HloType(tensor.dtype, tensor.device)
        self.scribe = HloScribe(tensor.device)

    def dynamic_slice(self, starts: Sequence[Any], sizes: Sequence[int]) -> HloTensor:
        """Return a part of the tensor."""
        part = self.tensor
        for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            part = part.index_select(dim, _positions(start, part.shape[dim], size, part.device))
        return HloTensor(part)

    def CustomCall(self, *args: HloTensor, custom_call_target: str) -> HloTensor:
        """Return the argument: the calls that libraries make this way mark a place."""
        del custom_call_target
        return args[0]


class _HloTuple:
    """The type of several results."""

    def CustomCall(self, *args: HloTensor, custom_call_target: str) -> tuple[HloTensor, ...]:
        """Return the arguments."""
        del custom_call_target
        return args


class HloScribe:
    """Types by name."""

    def __init__(self, device: torch.device) -> None:
        self.u32 = HloType(torch.int32, device)
        self.s32 = self.u32
        self.f32 = HloType(torch.float32, device)

    def tuple(self, *types: Any) -> _HloTuple:
        """Return the type of several results."""
        del types
        return _HloTuple()


class HloType:
    """A data type; `type[shape]` is the type of a tensor."""

    def __init__(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int] = ()) -> None:
        self._dtype, self._device, self._shape = dtype, device, tuple(shape)

    def __getitem__(self, shape: Sequence[int]) -> HloType:
        """Return the type of a tensor."""
        return HloType(self._dtype, self._device, shape)

    def Constant(self, constant_value: float) -> HloTensor:
        """Return a tensor without dimensions."""
        return HloTensor(torch.tensor(constant_value, dtype=self._dtype))

    def Rng(self, low: HloTensor, high: HloTensor, distribution: int = _UNIFORM) -> HloTensor:
        """Return random numbers from `low` to `high`.

        Raises:
            NotImplementedError: the distribution is not uniform.
        """
        if distribution != _UNIFORM:
            raise NotImplementedError(
                f"Rng with distribution {distribution} is not simulated: use 1, uniform"
            )
        drawn = torch.rand(self._shape, device=self._device, dtype=self._dtype)
        return HloTensor(drawn * (high.tensor - low.tensor) + low.tensor)

    def DynamicUpdateSlice(self, tensor: HloTensor, update: HloTensor, *starts: Any) -> HloTensor:
        """Return a tensor with a part replaced that starts where `starts` say."""
        whole, part = tensor.tensor, update.tensor
        rank = whole.dim()
        indices = [
            _positions(start, whole.shape[dim], part.shape[dim], whole.device).view(
                [-1 if place == dim else 1 for place in range(rank)]
            )
            for dim, start in enumerate(starts)
        ]
        return HloTensor(whole.index_put(indices, part.to(whole.dtype)))


def _positions(start: Any, size: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the indices of a part, which XLA moves so that it fits."""
    first = start.tensor if isinstance(start, HloTensor) else torch.tensor(start)
    return first.reshape(()).to(torch.int64).clamp(0, size - count) + torch.arange(count, device=device)


def _unwrap(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_unwrap, value))
    return value.tensor if isinstance(value, HloTensor) else value


class RmsNorm:
    """Root mean square normalization, in float32."""

    @staticmethod
    def apply(hidden: torch.Tensor, weight: torch.Tensor, eps: float, dim: int = -1) -> torch.Tensor:
        """Return the normalized tensor times the weight."""
        wide = hidden.float()
        normalized = wide * torch.rsqrt(wide.pow(2).mean(dim, keepdim=True) + eps)
        return (normalized * weight.float()).to(hidden.dtype)


class Argmax:
    """The index of the largest value."""

    apply = staticmethod(torch.argmax)


class TopK:
    """The largest values and their indices."""

    @staticmethod
    def apply(tensor: torch.Tensor, k: int, dim: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values and the indices."""
        values, indices = torch.topk(tensor, k, dim=dim)
        return values, indices


class Softmax:
    """Softmax along a dimension."""

    apply = staticmethod(torch.softmax)


class ConcatenateOp:
    """Tensors joined along a dimension."""

    @staticmethod
    def apply(*tensors: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """Return the joined tensors."""
        return torch.cat(tensors, dim)
