"""`neuronxcc` of the shims alone, as kernels import it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

import pytest

from neurontools import compat

spec = PathFinder.find_spec("neuronxcc", [compat.__path__[0]])
assert spec is not None
assert spec.loader is not None
if "neuronxcc" not in sys.modules:
    sys.modules["neuronxcc"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["neuronxcc"])
for name in ("nki", "nki.language", "nki.isa", "nki.isa.constants", "nki.typing", "nki.compiler", "nki.nccl"):
    import_module(f"neuronxcc.{name}")
MODULES = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "neuronxcc"}


@pytest.fixture(autouse=True)
def shim_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the modules back that tests of the shims take away."""
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
