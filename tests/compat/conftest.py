"""The shims in this process, on the in-memory machine."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import compat
from tests.xla.conftest import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["machine"]
PACKAGES = ("libneuronxla", "neuronxcc", "nki", "torch_xla", "torch_neuronx", "torchvision")


@pytest.fixture(scope="module")
def finder() -> Iterator[Any]:
    """What neuron-run puts into every Python process."""
    path = Path(compat.__path__[0]) / "site" / "sitecustomize.py"
    spec = spec_from_file_location("shim_site", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.ShimFinder
    sys.meta_path.remove(module.ShimFinder)
    for name in list(sys.modules):
        if name.partition(".")[0] in PACKAGES:
            del sys.modules[name]


@pytest.fixture
def shims(finder: Any, machine: Any) -> Any:
    """The machine under `import torch_xla`."""
    return machine


class NothingKept(set[bytes]):
    """A set that stays empty."""

    def add(self, item: bytes) -> None:
        del item


@pytest.fixture
def neuronx(shims: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch_neuronx, whose traced models are checked as in the process that loads them: like NEFFs from elsewhere."""
    import torch_neuronx

    monkeypatch.setattr("neurontools.xla.neff_executable._compiled_here", NothingKept())
    return torch_neuronx
