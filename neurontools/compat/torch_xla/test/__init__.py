"""torch_xla.test."""
