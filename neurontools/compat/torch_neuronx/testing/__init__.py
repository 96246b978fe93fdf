"""torch_neuronx.testing: comparisons of results of the device with those of the CPU."""

from __future__ import annotations

from typing import NoReturn

from torch_neuronx.testing.validation import assert_close, custom_allclose, neuron_allclose

from neurontools.compat.unsupported import missing_name

__all__ = ["assert_close", "custom_allclose", "neuron_allclose"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
