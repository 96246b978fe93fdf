"""torch_xla.distributed.fsdp: parameters divided among the workers, whole only while a module runs."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import (
    XlaFullyShardedDataParallel,
)
from neurontools.compat.unsupported import missing_name

__all__ = ["XlaFullyShardedDataParallel"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
