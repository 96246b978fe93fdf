"""Code of ours that torch.compile must not look into: traced, it would keep addresses of one call for all later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile runs as it is, with all that it calls.

    Where a compiled function is not one graph, as behind a size that values decide, torch.compile looks into each
    Python function that is called, implementations of operators too. A rule for the function's code prevents that
    without a cost for each call and without loading the compiler.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # an older torch
        from torch._compile import _disable_dynamo

        disabled: Callable[..., Any] = _disable_dynamo(function)
        return disabled
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return function
