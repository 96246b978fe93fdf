"""torch_xla.core.xla_model (`xm`): the calls that Trainium scripts use (PyTorch/XLA API reference)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from neurontools.compat import structures
from neurontools.compat.collectives import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    all_gather,
    all_gather_bucketized,
    all_reduce,
    all_reduce_bucketized_gradients,
    all_to_all,
    broadcast_master_param,
    collective_broadcast,
    collective_permute,
    mesh_reduce,
    reduce_gradients,
    reduce_scatter,
    reduce_scatter_bucketized,
    rendezvous,
)
from neurontools.compat.collectives import fetch_gradients as _fetch_gradients
from neurontools.compat.structures import is_device_tensor as is_xla_tensor
from neurontools.compat.unsupported import missing_names
from neurontools.xla import api
from neurontools.xla.distributed import workers

__all__ = [
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "_fetch_gradients",
    "all_gather",
    "all_gather_bucketized",
    "all_reduce",
    "all_reduce_bucketized_gradients",
    "all_to_all",
    "broadcast_master_param",
    "collective_broadcast",
    "collective_permute",
    "is_xla_tensor",
    "mesh_reduce",
    "reduce_gradients",
    "reduce_scatter",
    "reduce_scatter_bucketized",
    "rendezvous",
]
T = TypeVar("T")


__getattr__ = missing_names(__name__)


# Devices


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return the device of this process."""
    return torch.device("xla", n or 0)


def xla_real_devices(devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """Return the runtime's names of devices, such as NEURON:0; all of this process by default."""
    chosen = devices or get_xla_supported_devices()
    return [f"{xla_device_hw(device)}:{torch.device(device).index or 0}" for device in chosen]


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    """Return the names of the devices of this process."""
    return [f"xla:{index}" for index in range(api.device_count())][:max_devices]


def xla_device_hw(device: str | torch.device) -> str:
    """Return the hardware of a device: CPU or NEURON."""
    return "CPU" if torch.device(device).type == "cpu" else "NEURON"


def xla_device_kind(device: str | torch.device | None = None) -> str:
    """Return the core version, such as NC_v2."""
    return api.engine().accelerator.device_kind()


def xla_replication_devices(local_devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """Return the runtime's names of the devices that take part in the run."""
    return xla_real_devices(local_devices)


def set_replication(device: torch.device | str, devices: Sequence[torch.device | str] | None) -> None:
    """Name the devices that take part in the run; each process always uses its own.

    Raises:
        ValueError: the device is not among them.
    """
    if devices and str(device) not in map(str, devices):
        raise ValueError(f"{str(device)!r} is not in list")


# Steps


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Run the pending graph and the step closures."""
    api.mark_step(wait=wait)


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Wait until the device has nothing left to do."""
    api.wait_device_ops()


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Compute tensors now."""
    api.engine().sync()


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


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Keep the compiler from moving work across this point; the compiler here moves none."""


# Data


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Save with every tensor on the CPU; with `master_only` only the first rank writes."""
    mark_step()
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(structures.to_cpu(data), file_or_path)


def send_cpu_data_to_device(datas: Any, device: str | torch.device, input_sharding: Any = None) -> Any:
    """Return a structure with its CPU tensors on a device; a single tensor gives a list of one.

    `input_sharding` is a `spmd.ShardingSpec`, whose mesh has one device.
    """
    return structures.to_device([datas] if isinstance(datas, torch.Tensor) else datas, device)


class ToXlaTensorArena:
    """Converts the tensors of a structure together.

    Args:
        convert_fn: gives the replacements of a list of objects.
        select_fn: says which objects are replaced.
    """

    def __init__(
        self, convert_fn: Callable[[list[Any]], Sequence[Any]], select_fn: Callable[[Any], bool]
    ) -> None:
        self._convert = convert_fn
        self._is_selected = select_fn

    def transform(self, inputs: Any) -> Any:
        """Return a copy of a structure with the selected objects replaced."""
        found: list[Any] = []
        structures.visit(inputs, self._is_selected, found.append)
        converted = self._convert(found) if found else ()
        replacement = {id(item): made for item, made in zip(found, converted, strict=True)}
        return structures.replace(inputs, self._is_selected, lambda item: replacement[id(item)])


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return structures.to_cpu(data) if convert else data


def check_view_sharing(obj: Any) -> None:
    """Check that no two tensors of a structure are views of the same memory.

    Raises:
        RuntimeError: two tensors share memory.
    """
    seen: dict[int, torch.Tensor] = {}

    def check(tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()._cdata  # noqa: SLF001
        other = seen.setdefault(storage, tensor)
        if other is not tensor:
            raise RuntimeError(
                f"Tensor ID {id(tensor)} ({tensor.dtype}{list(tensor.size())}) is sharing a view with tensor ID "
                f"{id(other)} ({other.dtype}{list(other.size())})"
            )

    structures.visit(obj, structures.is_tensor, check)


# Processes


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """Return the payload of each process of the run."""
    return rendezvous(tag or "", payload, ordinals or ())


def do_on_ordinals(
    target: Callable[..., T], data: Sequence[Any] = (), ordinals: Collection[int] = (0,)
) -> T | None:
    """Call a function with `data` on the CPU in the processes of some ranks; the others wait and get None."""
    result = target(*structures.to_cpu(data)) if workers.rank() in ordinals else None
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result


def is_master_ordinal(local: bool = True) -> bool:
    """Return whether this is the first process of the machine, or of the run."""
    return (workers.local_rank() if local else workers.rank()) == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Print in the first process only."""
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


# Removed in torch_xla 2.7, kept for older scripts.
get_ordinal = workers.rank
get_local_ordinal = workers.local_rank
xrt_world_size = workers.world_size


# Memory and random numbers


def get_memory_info(device: str | torch.device | None = None) -> dict[str, int]:
    """Return the device memory of the core: bytes in use, limit and peak."""
    info = api.engine().memory(torch.device(device or "xla").index or 0)
    return {
        "bytes_used": info.used_bytes,
        "bytes_limit": info.limit_bytes,
        "peak_bytes_used": info.peak_bytes,
    }


def set_rng_state(seed: int, device: str | torch.device | None = None) -> None:
    """Set the state of the device's random numbers."""
    api.engine().set_rng_value(torch.device(device or "xla").index or 0, int(seed))


def get_rng_state(device: str | torch.device | None = None) -> int:
    """Return the state of the device's random numbers: 64 bits."""
    return api.engine().rng_value(torch.device(device or "xla").index or 0)


@contextmanager
def fork_rng(device: str | torch.device | None = None, enabled: bool = True) -> Iterator[None]:
    """Restore the state of the device's random numbers after a block."""
    module = torch.get_device_module("xla")  # its states cost no synchronization
    state = module.get_rng_state(device) if enabled else None
    try:
        yield
    finally:
        if state is not None:
            module.set_rng_state(state, device)


class RateTracker:
    """Counts samples and returns smoothed rates.

    Args:
        smooth_factor: weight of the newest rate, 0 to 1; by default RATE_TRACKER_SMOOTHING, or 0.4.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        default = float(os.environ.get("RATE_TRACKER_SMOOTHING", "0.4"))
        self._weight = default if smooth_factor is None else smooth_factor
        self._start = self._last = time.time()
        self._before = 0.0
        self._count = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Count samples."""
        self._count += count

    def rate(self) -> float:
        """Return the smoothed rate since the last call, in samples a second."""
        now = time.time()
        elapsed = now - self._last
        if elapsed <= 0:
            return 0.0
        newest = self._count / elapsed
        if self._rate is not None:
            newest = self._weight * newest + (1 - self._weight) * self._rate
        self._before += self._count
        self._count, self._last, self._rate = 0.0, now, newest
        return newest

    def global_rate(self) -> float:
        """Return the mean rate since the start, in samples a second."""
        elapsed = time.time() - self._start
        return (self._before + self._count) / elapsed if elapsed > 0 else 0.0
