"""torch_xla.core.xla_model (`xm`): the calls that Trainium scripts use (PyTorch/XLA API reference)."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map

from neurontools.compat import ranks
from neurontools.xla import api

T = TypeVar("T")
REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_MIN = "min"
REDUCE_MAX = "max"
REDUCE_AND = "and"
REDUCE_OR = "or"


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return the device of this process."""
    return torch.device("xla", n or 0)


def xla_real_devices(devices: Sequence[torch.device] | None = None) -> list[str]:
    """Return the names of devices, all of this process by default."""
    return [str(device) for device in devices or map(xla_device, range(api.device_count()))]


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    """Return the names of the devices of this process."""
    return xla_real_devices()[:max_devices]


def xla_device_hw(device: str | torch.device) -> str:
    """Return the hardware of a device: CPU or NEURON."""
    return "CPU" if torch.device(device).type == "cpu" else "NEURON"


def xla_device_kind(device: torch.device | None = None) -> str:
    """Return the core version, such as NC_v2."""
    return api.device_kind()


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Run the pending graph and the step closures."""
    api.mark_step(wait=wait)


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Wait until the device has nothing left to do."""
    api.wait_device_ops()


def add_step_closure(
    closure: Callable[..., None], args: tuple[Any, ...] = (), run_async: bool = False
) -> None:
    """Call a function after the next mark_step."""
    api.add_step_closure(closure, args)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Average the gradients over the run and step; runs the pending graph only with `barrier`."""
    reduce_gradients(optimizer, groups, pin_layout)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return loss


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Any = None, pin_layout: bool = True) -> None:
    """Average the gradients over the processes of the run."""
    ranks.require_single("averaging gradients")


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | list[torch.Tensor],
    scale: float = 1.0,
    groups: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor | list[torch.Tensor]:
    """Reduce over the run: a tensor gives a new tensor, a list is reduced in place."""
    ranks.require_single("all_reduce")
    if isinstance(inputs, torch.Tensor):
        return inputs.clone() if scale == 1.0 else inputs * scale
    if scale != 1.0:
        for tensor in inputs:
            tensor.mul_(scale)
    return inputs


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Save with every tensor on the CPU; with `master_only` only the first rank writes."""
    mark_step()
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(_to_cpu(data), file_or_path)


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return _to_cpu(data) if convert else data


def _to_cpu(data: Any) -> Any:
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, data)


def rendezvous(tag: str, payload: bytes = b"", replicas: Iterable[int] = ()) -> list[bytes]:
    """Wait for the other processes of the run and return the payload of each."""
    ranks.require_single(f"rendezvous {tag!r}")
    mark_step()
    return [payload]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], T]) -> T:
    """Gather a value from every process and reduce the list."""
    buffer = io.BytesIO()
    torch.save(_to_cpu(data), buffer)
    gathered = rendezvous(tag, buffer.getvalue())
    return reduce_fn([torch.load(io.BytesIO(payload), weights_only=False) for payload in gathered])


def is_master_ordinal(local: bool = True) -> bool:
    """Return whether this is the first process of the machine, or of the run."""
    return (ranks.local_rank() if local else ranks.rank()) == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Print in the first process only."""
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


# Removed in torch_xla 2.7, kept for older scripts.
get_ordinal = ranks.rank
get_local_ordinal = ranks.local_rank
xrt_world_size = ranks.world_size


def get_memory_info(device: str | torch.device | None = None) -> dict[str, int]:
    """Return the device memory of the core: bytes in use, limit and peak."""
    info = api.memory_info(torch.device(device or "xla").index or 0)
    return {
        "bytes_used": info.used_bytes,
        "bytes_limit": info.limit_bytes,
        "peak_bytes_used": info.peak_bytes,
    }


def set_rng_state(seed: int, device: str | None = None) -> None:
    """Set the state of the device's random numbers."""
    api.set_rng_state(seed, torch.device(device or "xla").index or 0)


def get_rng_state(device: str | None = None) -> int:
    """Return the state of the device's random numbers: 64 bits."""
    return api.get_rng_state(torch.device(device or "xla").index or 0)
