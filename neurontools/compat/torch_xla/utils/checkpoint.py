"""torch_xla.utils.checkpoint: layers whose intermediate values are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint as _checkpoint  # programs put the function below in its place

from neurontools.compat.unsupported import missing_names

__getattr__ = missing_names(__name__)


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """Call a function and keep its inputs instead of its intermediate values.

    Args:
        function: a module or function.
        args: its arguments.
        use_reentrant: which of torch's two implementations runs.
        kwargs: options of `torch.utils.checkpoint.checkpoint`.
    """
    return _checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
