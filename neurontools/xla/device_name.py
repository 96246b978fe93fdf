"""The name of the device in this process: `xla`, or `neuron` for the native device. PrivateUse1 can be named once."""

from __future__ import annotations

from neurontools.xla.accelerator import DeviceError

XLA = "xla"
NEURON = "neuron"
_chosen: list[str] = []


def device_name() -> str:
    """Return the device's name, `xla` as long as none was chosen."""
    return _chosen[0] if _chosen else XLA


def choose(name: str) -> None:
    """Choose the device's name; the first choice is final.

    Raises:
        DeviceError: this process has chosen the other name.
    """
    if _chosen and _chosen[0] != name:
        raise DeviceError(
            f"the device of this process is called {_chosen[0]!r}, so it cannot be {name!r} too",
            "use one of the two names per process",
        )
    _chosen[:] = [name]
