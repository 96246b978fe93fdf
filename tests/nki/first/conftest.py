"""`neuronxcc` of the shims alone, as kernels import it."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from neurontools import compat

spec = PathFinder.find_spec("neuronxcc", [compat.__path__[0]])
assert spec is not None
assert spec.loader is not None
if "neuronxcc" not in sys.modules:
    sys.modules["neuronxcc"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["neuronxcc"])
