"""torch_neuronx.pyhlo.xla_data_pb2: numbers of XLA's data types."""

from neurontools.compat.model_builder.messages import PrimitiveType
from neurontools.compat.unsupported import missing_names

__all__ = ["PrimitiveType"]
__getattr__ = missing_names(__name__)
