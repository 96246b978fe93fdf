"""torch_xla.runtime: ranks and devices of this process."""

from __future__ import annotations

from neurontools.compat import ranks
from neurontools.xla import api


def world_size() -> int:
    """Return the number of processes of the run."""
    return ranks.world_size()


def global_ordinal() -> int:
    """Return this process's rank in the run."""
    return ranks.rank()


def local_ordinal() -> int:
    """Return this process's rank on its machine."""
    return ranks.local_rank()


def process_index() -> int:
    """Return this process's rank in the run."""
    return ranks.rank()


def process_count() -> int:
    """Return the number of processes of the run."""
    return ranks.world_size()


def local_process_count() -> int:
    """Return the number of processes on this machine."""
    return ranks.local_world_size()


def addressable_device_count() -> int:
    """Return the number of NeuronCores of this process."""
    return api.device_count()


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
