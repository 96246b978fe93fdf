"""torch_neuronx.utils.utils: kinds of machines."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from neurontools.compat.unsupported import missing_names
from neurontools.compiler.options import flag_value, target_of
from neurontools.machine.instances.catalogue import instance_names, instance_type
from neurontools.runtime.core_claim import read_machine

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SUPPORTED_TYPES", "get_platform_target"]
SUPPORTED_TYPES = sorted({target_of(instance_type(name).device) for name in instance_names()} - {"inf1"})
"""The devices that torch_neuronx supports: all except Inferentia 1."""


__getattr__ = missing_names(__name__)


def get_platform_target(compiler_flags: str | Sequence[str] | None = None) -> str:
    """Return the compiler's name of the devices to compile for, such as trn1; claims no cores.

    It is the `--target` of the flags, else NEURON_PLATFORM_TARGET_OVERRIDE, else the type of this machine.
    """
    flags = shlex.split(compiler_flags) if isinstance(compiler_flags, str) else compiler_flags or ()
    named = flag_value(flags, "--target") or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "")
    if named:
        return named
    return target_of(instance_type(read_machine(os.environ).instance_type).device)
