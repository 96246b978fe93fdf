"""torch_neuronx.proto.metaneff_pb2: the border of a NEFF."""

from neurontools.compat.model_builder.messages import MetaNeff, MetaTensor
from neurontools.compat.unsupported import missing_names

__all__ = ["MetaNeff", "MetaTensor"]
__getattr__ = missing_names(__name__)
