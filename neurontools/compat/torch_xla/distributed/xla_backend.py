"""torch_xla.distributed.xla_backend: importing it makes `xla` known to torch.distributed, as backend and `xla://`."""

from __future__ import annotations

from neurontools.compat.unsupported import missing_names
from neurontools.xla.distributed import process_group
from neurontools.xla.distributed.process_group import ProcessGroupXla

__all__ = ["ProcessGroupXla"]

process_group.register()


__getattr__ = missing_names(__name__)
