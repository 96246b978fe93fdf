"""The compiler's names of devices, as `torch_neuronx.utils` gives them."""

from __future__ import annotations

from neurontools.compiler.options import target_of
from neurontools.machine.instances.catalogue import instance_names, instance_type
from neurontools.xla import api

SUPPORTED_TYPES = sorted({target_of(instance_type(name).device) for name in instance_names()} - {"inf1"})
"""The devices that torch_neuronx supports: all except Inferentia 1."""


def get_platform_target() -> str:
    """Return the compiler's name of this machine's devices, such as trn1."""
    return target_of(api.runtime().instance.device)
