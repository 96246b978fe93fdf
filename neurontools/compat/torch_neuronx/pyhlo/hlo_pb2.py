"""torch_neuronx.pyhlo.hlo_pb2: HLO modules, as far as libraries look into them."""

from neurontools.compat.model_builder.messages import (
    HloComputationProto,
    HloInputOutputAliasProto,
    HloInstructionProto,
    HloModuleProto,
)
from neurontools.compat.unsupported import missing_names

__all__ = ["HloComputationProto", "HloInputOutputAliasProto", "HloInstructionProto", "HloModuleProto"]
__getattr__ = missing_names(__name__)
