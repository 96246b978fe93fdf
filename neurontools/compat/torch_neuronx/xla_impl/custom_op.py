"""torch_neuronx.xla_impl.custom_op: build and load custom C++ operators."""

from neurontools.customop.load import load, load_library

__all__ = ["load", "load_library"]
