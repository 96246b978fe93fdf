"""`neuronxcc.nki.isa`: instructions, which return their results."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.constants import dge_mode, engine, nc_version, oob_mode, reduce_cmd
from neurontools.nki.first.isa import FUNCTIONS
from neurontools.nki.first.language import fp32

globals().update(FUNCTIONS)
tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, dma_engine, unknown_engine = engine.gpsimd, engine.dma, engine.unknown
__all__ = [  # noqa: PLE0604
    "dge_mode",
    "dma_engine",
    "engine",
    "fp32",
    "gpsimd_engine",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "scalar_engine",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
    *FUNCTIONS,
]
__getattr__ = missing_names(__name__)
