"""Random operators that a compiled graph runs again in its backward pass, for `torch.utils.checkpoint`."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._prims import rng_prims

from neurontools.native.selection import NEURON
from neurontools.xla import api

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.cache
def install() -> None:
    """Let torch's operators that save and replay random numbers know the device, beside those that torch lists."""
    on_device(rng_prims.run_and_save_rng_state, _run_and_save)
    on_device(rng_prims.run_with_rng_state, _run_again)


def on_device(operator: Any, run: Callable[..., Any]) -> None:
    """Let one of torch's operators that call random operators know the device.

    Args:
        operator: the operator.
        run: what it does on the device, whose index is the first argument.
    """
    kernels = operator.py_kernels
    kernels[torch._C.DispatchKey.BackendSelect] = _on_device(run, kernels[torch._C.DispatchKey.BackendSelect])
    operator._dispatch_cache.clear()


def _on_device(run: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(otherwise)
    def choose(*args: Any, **kwargs: Any) -> Any:
        devices = [torch.device(kwargs["device"])] if kwargs.get("device") else []
        devices += [arg.device for arg in args if isinstance(arg, torch.Tensor)]
        found = next((device for device in devices if device.type == NEURON), None)
        return otherwise(*args, **kwargs) if found is None else run(found.index or 0, *args, **kwargs)

    return choose


def _run_and_save(index: int, operator: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    return api.engine().rng_state(index, recorded=True), operator(*args, **kwargs)


def _run_again(index: int, state: torch.Tensor, operator: Any, *args: Any, **kwargs: Any) -> Any:
    engine = api.engine()
    current = engine.rng_state(index, recorded=True)
    engine.set_rng_state(index, state, recorded=True)
    outcome = operator(*args, **kwargs)
    engine.set_rng_state(index, current, recorded=True)
    return outcome
