"""torch_xla._internal.tpu: Lightning asks it before it chooses an accelerator; a Neuron machine has no TPU."""

from __future__ import annotations

from neurontools.compat.unsupported import missing_names

__getattr__ = missing_names(__name__)


def num_available_chips() -> int:
    """Return the number of TPU chips: none."""
    return 0


def num_available_devices() -> int:
    """Return the number of TPU cores: none."""
    return 0
