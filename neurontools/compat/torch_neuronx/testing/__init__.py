"""torch_neuronx.testing: comparisons of results of the device with those of the CPU."""

from __future__ import annotations

from torch_neuronx.testing.validation import assert_close, custom_allclose, logit_validation, neuron_allclose

from neurontools.compat.unsupported import missing_names

__all__ = ["assert_close", "custom_allclose", "logit_validation", "neuron_allclose"]


__getattr__ = missing_names(__name__)
