"""torch_neuronx.utils: what kind of machine this is."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.missing import missing_name
from neurontools.compiler.options import target_of
from neurontools.xla import api


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)


def get_platform_target() -> str:
    """Return the compiler's name of this machine's devices, such as trn1."""
    return target_of(api.runtime().instance.device)
