"""torch_neuronx.xla_impl.base: where functions that build HLO are defined."""

from neurontools.compat.model_builder.hlo_functions import xla_hlo_call
from neurontools.compat.unsupported import missing_names

xla_call = xla_hlo_call
__all__ = ["xla_call", "xla_hlo_call"]
__getattr__ = missing_names(__name__)
