"""torch_xla.distributed.xla_backend: importing it makes `xla` known to torch.distributed, as backend and `xla://`."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.unsupported import missing_name
from neurontools.xla.distributed import process_group
from neurontools.xla.distributed.process_group import ProcessGroupXla

__all__ = ["ProcessGroupXla"]

process_group.register()


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
