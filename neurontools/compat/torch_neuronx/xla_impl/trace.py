"""torch_neuronx.xla_impl.trace: models recorded for a later compile."""

from neurontools.compat.model_builder.messages import PRIMITIVE_TYPES as XLA_DTYPE_TO_METANEFF_DTYPE
from neurontools.compat.model_builder.messages import torch_dtype as get_torch_dtype
from neurontools.compat.model_builder.recording import (
    HloArtifacts,
    NeffArtifacts,
    generate_hlo,
    generate_neff,
    get_hlo_computation_by_id,
    get_hlo_root_instruction,
    hlo_entry_computation,
)
from neurontools.compat.unsupported import missing_names

__all__ = [
    "XLA_DTYPE_TO_METANEFF_DTYPE",
    "HloArtifacts",
    "NeffArtifacts",
    "generate_hlo",
    "generate_neff",
    "get_hlo_computation_by_id",
    "get_hlo_root_instruction",
    "get_torch_dtype",
    "hlo_entry_computation",
]
__getattr__ = missing_names(__name__)
