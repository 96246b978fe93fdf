"""Faults that are cleared after the test that injects them."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from neurontools.machine.api import Machine
    from neurontools.machine.faults.params import Fault, FaultParams


class FaultInjector:
    """Call it with the arguments of `Machine.inject`: `inject("ecc", device=3)`.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._injected: set[int] = set()

    def __call__(self, kind: str, **aim: Unpack[FaultParams]) -> Fault:
        """Inject a fault; see `Machine.inject`."""
        fault = self._machine.inject(kind, **aim)
        self._injected.add(fault.id)
        return fault

    def clear(self) -> None:
        """Clear the injected faults that are still armed."""
        armed = [fault for fault in self._machine.faults() if fault.id in self._injected]
        if armed:
            self._machine.clear_faults(*armed)
        self._injected.clear()


@contextmanager
def injector(machine: Machine) -> Iterator[FaultInjector]:
    """Yield an injector for a block; its faults are cleared at the end, unless the machine was stopped."""
    inject = FaultInjector(machine)
    try:
        yield inject
    finally:
        with suppress(NeuronToolsError):
            inject.clear()
