"""Imports torch for the shims, and checks that no installed torch_xla is mixed with them; errors say what to do."""

from __future__ import annotations

import os
from importlib.util import find_spec

from neurontools.errors import TORCH_REMEDY

try:
    import torch
except ModuleNotFoundError:
    raise ModuleNotFoundError(f"No module named 'torch': {TORCH_REMEDY}", name="torch") from None

__all__ = ["torch"]

_found = find_spec("torch_xla")
_ours = os.path.dirname(os.path.realpath(__file__))  # an environment may be a link
if _found is not None and _found.origin and not os.path.realpath(_found.origin).startswith(_ours):
    raise ImportError(
        f"torch_xla is installed in {os.path.dirname(_found.origin)}, and the simulated torch_neuronx does not work "
        "with it: pip uninstall torch_xla, or run the program without neuron-run",
        name="torch_neuronx",
    )
