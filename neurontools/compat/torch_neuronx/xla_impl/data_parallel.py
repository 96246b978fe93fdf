"""torch_neuronx.xla_impl.data_parallel: where DataParallel is defined."""

from neurontools.compat.data_parallel import DataParallel

__all__ = ["DataParallel"]
