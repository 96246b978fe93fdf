"""torch_xla.distributed."""
