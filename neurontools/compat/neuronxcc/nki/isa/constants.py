"""`neuronxcc.nki.isa.constants`: the enumerations of instructions."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.constants import dge_mode, engine, nc_version, oob_mode, reduce_cmd

__all__ = ["dge_mode", "engine", "nc_version", "oob_mode", "reduce_cmd"]
__getattr__ = missing_names(__name__)
