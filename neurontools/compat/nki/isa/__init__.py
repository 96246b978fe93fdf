"""`nki.isa`: instructions."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.constants import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from neurontools.nki.context import Record as NkiInstruction
from neurontools.nki.errors import KernelError as NkiValidationError
from neurontools.nki.instructions import INSTRUCTIONS
from neurontools.nki.launch import get_nc_version
from neurontools.nki.limits import nc_sub_version as get_nc_sub_version
from neurontools.nki.objects import VirtualRegister

globals().update(INSTRUCTIONS)
tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, dma_engine_, sync_engine, unknown_engine = (
    engine.gpsimd,
    engine.dma,
    engine.sync,
    engine.unknown,
)
__all__ = [  # noqa: PLE0604  names of a table
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "dge_mode",
    "dma_engine",
    "engine",
    "get_nc_sub_version",
    "get_nc_version",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    *INSTRUCTIONS,
]
__getattr__ = missing_names(__name__)
