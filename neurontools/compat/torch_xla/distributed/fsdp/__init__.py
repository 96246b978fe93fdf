"""torch_xla.distributed.fsdp: parameters divided among the workers, whole only while a module runs."""

from __future__ import annotations

from neurontools.compat.torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import (
    XlaFullyShardedDataParallel,
)
from neurontools.compat.unsupported import missing_names

__all__ = ["XlaFullyShardedDataParallel"]


__getattr__ = missing_names(__name__)
