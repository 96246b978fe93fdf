"""torch_xla.utils."""
