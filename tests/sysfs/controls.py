"""What a mirror does to a machine, for tests."""

from __future__ import annotations

from neurontools.errors import NeuronToolsError


class Machine:
    """Controls that remember, or refuse."""

    def __init__(self, refusal=""):
        self.calls = []
        self.refusal = refusal

    def reset_hardware(self, device, counter):
        self._call("reset_hardware", device, counter)

    def reset_device(self, device):
        self._call("reset_device", device)

    def _call(self, *call):
        if self.refusal:
            raise NeuronToolsError(self.refusal)
        self.calls.append(call)
