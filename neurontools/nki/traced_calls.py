"""Calls of kernels in functions that torch.compile traces; importing this loads the tracer, which takes a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._dynamo import nonstrict_trace

from neurontools.nki import torch_operator
from neurontools.nki.runs import kernels

if TYPE_CHECKING:
    from neurontools.nki.runs import GridFactors


@nonstrict_trace  # type: ignore[untyped-decorator]
def call(number: int, factors: GridFactors, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a kernel with fake tensors: the graph gets its operator. A call without results returns ()."""
    results = torch_operator.call(kernels[number].on_grid(factors), args, kwargs)
    return () if results is None else results
