"""torch_neuronx.xla_impl.structure: inputs taken apart, and results put together."""

from neurontools.compat.model_builder.structure import Flattener, Packer
from neurontools.compat.unsupported import missing_names

__all__ = ["Flattener", "Packer"]
__getattr__ = missing_names(__name__)
