"""Placement and other settings of traced models.

Sources: AWS Neuron documentation, "PyTorch NeuronX NeuronCore Placement APIs", "PyTorch NeuronX Lazy and Asynchronous
Loading API", "PyTorch Neuron (torch-neuronx) Weight Replacement API for Inference".
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from neurontools.compat import traced_model
from neurontools.compat.traced_model import ASYNC, DYNAMIC_BATCH, LAZY, SEPARATED
from neurontools.xla import api

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager


def set_neuron_cores(trace: torch.jit.ScriptModule, start_nc: int = -1, nc_count: int = -1) -> None:
    """Move the traced models of a module to cores.

    Args:
        trace: the module.
        start_nc: first of this process's cores; -1 for the next one, round-robin.
        nc_count: number of cores, used in turn; -1 for one.

    Raises:
        ValueError: the process does not have these cores.
    """
    cores = range_of_cores(start_nc, nc_count)
    for part in traced_model.submodules(trace):
        traced_model.model_of(part).place(cores)


def set_multicore(trace: torch.jit.ScriptModule) -> None:
    """Move the traced models of a module to all cores of this process."""
    set_neuron_cores(trace, 0, api.device_count())


def move_trace_to_device(trace: torch.jit.ScriptModule, device_id: int) -> None:
    """Move the traced models of a module to a core, weights that are not part of the NEFF too."""
    set_neuron_cores(trace, device_id, 1)


def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> AbstractContextManager[None]:
    """Return a context in which torch.jit.load places models on cores; arguments as in `set_neuron_cores`."""
    return traced_model.placement(range_of_cores(start_nc, nc_count))


def multicore_context() -> AbstractContextManager[None]:
    """Return a context in which torch.jit.load places models on all cores of this process."""
    return neuron_cores_context(0, api.device_count())


def lazy_load(trace: torch.jit.ScriptModule, enable_lazy_load: bool = True) -> None:
    """Let torch.jit.load leave a model off the cores until it is executed or placed."""
    _set(trace, LAZY, enable_lazy_load)


def async_load(trace: torch.jit.ScriptModule, enable_async_load: bool = True) -> None:
    """Let torch.jit.load load a model in a thread; its first execution waits for that."""
    _set(trace, ASYNC, enable_async_load)


def dynamic_batch(neuron_script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Let a traced module take batches of any size: they are split and padded to the traced size.

    Raises:
        ValueError: its inputs or results differ in dimension 0.
    """
    for part in traced_model.submodules(neuron_script):
        traced_model.traced_batch(traced_model.model_of(part).signature)
    _set(neuron_script, DYNAMIC_BATCH, enable=True)
    return neuron_script


def replace_weights(
    neuron_model: torch.jit.ScriptModule, weights: torch.nn.Module | Mapping[str, torch.Tensor]
) -> None:
    """Give a model that was traced with `inline_weights_to_neff=False` other weights, in place.

    Args:
        neuron_model: the traced module.
        weights: the original module with other weights, or its state_dict.

    Raises:
        ValueError: a weight has another shape or data type.
    """
    values = weights.state_dict() if isinstance(weights, torch.nn.Module) else weights
    parts = [part for part in traced_model.submodules(neuron_model) if part.settings[SEPARATED]]
    if not parts:
        warnings.warn(
            "the model has no separated weights: trace it with inline_weights_to_neff=False", stacklevel=2
        )
    for part in parts:
        names = traced_model.model_of(part).signature.weights
        for position, name in enumerate(names):
            if name not in values:
                continue
            target: torch.Tensor = getattr(part, f"weight_{position}")
            value = values[name]
            if (value.shape, value.dtype) != (target.shape, target.dtype):
                raise ValueError(
                    f"weight {name!r} is {value.dtype}{list(value.shape)}, "
                    f"but the model was traced with {target.dtype}{list(target.shape)}"
                )
            with torch.no_grad():
                target.copy_(value)


def _set(module: torch.jit.ScriptModule, setting: int, enable: bool) -> None:
    for part in traced_model.submodules(module):
        part.settings[setting] = int(enable)


def range_of_cores(start: int, count: int) -> tuple[int, ...]:
    """Return the numbers of cores; -1 for the next core, or for one core.

    Raises:
        ValueError: the process does not have these cores.
    """
    total = api.device_count()
    count = 1 if count == -1 else count
    if not 1 <= count <= total:
        raise ValueError(f"nc_count {count} is invalid: this process has {total} NeuronCore(s)")
    if start == -1:
        (start,) = traced_model.next_cores() if count == 1 else (0,)
    if not 0 <= start <= total - count:
        raise ValueError(
            f"NeuronCores {start}-{start + count - 1} do not exist: this process has {total} NeuronCore(s)"
        )
    return tuple(range(start, start + count))


def core_number(device: Any) -> int:
    """Return the number of a core that is given as a number or as `nc:#`.

    Raises:
        ValueError: it is neither, or this process has no such core.
    """
    text = str(device).removeprefix("nc:")
    if not text.isdecimal() or int(text) >= api.device_count():
        raise ValueError(
            f"device {device!r} does not exist: this process has nc:0 to nc:{api.device_count() - 1}"
        )
    return int(text)
