"""The error of a host without a Neuron driver: apart, so that who catches it imports nothing else."""

from __future__ import annotations

from neurontools.errors import NoMachineError


class NoDriverError(NoMachineError):
    """The host has no Neuron driver, or no device."""
