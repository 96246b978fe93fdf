"""torch_xla.runtime: ranks and devices of this process."""

from __future__ import annotations

from neurontools.compat import ranks
from neurontools.xla import api

world_size = process_count = ranks.world_size
global_ordinal = process_index = ranks.rank
local_ordinal = ranks.local_rank
local_process_count = ranks.local_world_size
addressable_device_count = api.device_count


def global_device_count() -> int:
    """Return the number of NeuronCores of the run."""
    return api.device_count() * ranks.world_size()


def local_device_count() -> int:
    """Return the number of NeuronCores of this machine's processes."""
    return api.device_count() * ranks.local_world_size()


def device_type() -> str:
    """Return the PJRT device name."""
    return "NEURON"


def is_spmd() -> bool:
    """Return whether SPMD sharding is on; always False."""
    return False
