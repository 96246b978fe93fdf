"""torch_neuronx.xla_impl.torchscript: where replace_weights is defined."""

from neurontools.compat.core_placement import replace_weights

__all__ = ["replace_weights"]
