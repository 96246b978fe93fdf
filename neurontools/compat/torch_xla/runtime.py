"""torch_xla.runtime (`xr`): ranks and devices of this process."""

from __future__ import annotations

import os

from neurontools.compat.unsupported import missing_names
from neurontools.errors import UsageError
from neurontools.xla import api
from neurontools.xla.debugging import metrics
from neurontools.xla.distributed import workers

world_size = process_count = workers.world_size
global_ordinal = process_index = workers.rank
local_ordinal = workers.local_rank
local_process_count = workers.local_world_size
addressable_device_count = addressable_runtime_device_count = api.device_count


__getattr__ = missing_names(__name__)


def global_device_count() -> int:
    """Return the number of NeuronCores of the run."""
    return api.device_count() * workers.world_size()


def global_runtime_device_count() -> int:
    """Return the number of NeuronCores of the run."""
    return global_device_count()


def local_device_count() -> int:
    """Return the number of NeuronCores of this machine's processes."""
    return api.device_count() * workers.local_world_size()


def host_index() -> int:
    """Return the position of this machine in the run."""
    return workers.rank() // workers.local_world_size()


def device_type() -> str:
    """Return the PJRT device name."""
    return "NEURON"


def set_device_type(pjrt_device: str) -> None:
    """Choose the PJRT device; NEURON is the only one.

    Raises:
        UsageError: another device was chosen.
    """
    if pjrt_device != "NEURON":
        raise UsageError(
            f"PJRT device {pjrt_device!r} is not simulated", "use NEURON, or run without neuron-run"
        )


def runtime_device_attributes(device: str) -> dict[str, object]:
    """Return what the runtime knows of a device, by its name such as NEURON:0."""
    kind, _, index = device.partition(":")
    if kind != device_type() or not index.isdecimal() or int(index) >= api.device_count():
        raise IndexError(f"Device {device!r} is not among {api.device_count()} devices of this process")
    return {"core_kind": api.engine().accelerator.device_kind(), "index": int(index)}


def global_runtime_device_attributes() -> list[dict[str, object]]:
    """Return what the runtime knows of each device of the run."""
    kind = api.engine().accelerator.device_kind()
    return [{"core_kind": kind, "index": index} for index in range(global_device_count())]


def is_bf16_supported() -> bool:
    """Return whether the device supports bfloat16; always True."""
    return True


def get_master_ip() -> str:
    """Return the address of the run's first process."""
    return os.environ.get("MASTER_ADDR", "localhost")


def get_num_cached_compilation_graph() -> int:
    """Return the number of graphs that this process has loaded."""
    return metrics.counter_value("UncachedCompile") or 0


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Set the directory of the compile cache; must be called before the device is used.

    Raises:
        UsageError: a read-only cache was requested.
    """
    if readonly:
        raise UsageError("a read-only compile cache is not simulated", "call initialize_cache(path)")
    os.environ["NEURON_COMPILE_CACHE_URL"] = path


def is_spmd() -> bool:
    """Return whether SPMD sharding is on."""
    return os.environ.get("XLA_USE_SPMD", "") not in {"", "0", "false"}


def use_spmd(auto: bool = False) -> None:
    """Turn SPMD sharding on, for meshes of one device.

    Raises:
        UsageError: automatic sharding was requested.
    """
    if auto:
        raise UsageError(
            "automatic sharding is not simulated", "use torch_xla.distributed.spmd.mark_sharding"
        )
    os.environ["XLA_USE_SPMD"] = "1"
