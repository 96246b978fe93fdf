"""torch_neuronx.contexts: what TorchScript modules load while they are made."""

from contextlib import nullcontext as disable_nrt_load

from neurontools.compat.unsupported import missing_names

__all__ = ["disable_nrt_load"]
__getattr__ = missing_names(__name__)
