"""The error counters of a machine's devices, changed by events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.machine.events import CountHardware, DeviceChanged, Effect, Invalid, Refused, ResetHardware
from neurontools.machine.hardware import NO_ERRORS, HardwareCounter, HardwareCounters

if TYPE_CHECKING:
    from collections.abc import Mapping


class ErrorCounters:
    """Counts memory errors by device.

    Args:
        device_count: the machine's devices.
        past: what was counted so far.
    """

    def __init__(self, device_count: int, past: Mapping[int, HardwareCounters]) -> None:
        self.devices = [past.get(device, NO_ERRORS) for device in range(device_count)]

    def handle(self, event: CountHardware | ResetHardware) -> tuple[Effect, ...]:
        """Count errors, or set counters to zero."""
        if not 0 <= event.device < len(self.devices):
            return (Refused(Invalid(f"there is no device {event.device}")),)
        if isinstance(event, CountHardware):
            if event.amount <= 0:
                return (Refused(Invalid(f"{event.amount} is no number of errors")),)
            self.count(event.device, event.counter, event.amount)
        elif event.counter is None:
            self.devices[event.device] = NO_ERRORS
        else:
            self.devices[event.device] = replace(self.devices[event.device], **{event.counter: 0})
        return (DeviceChanged(event.device),)

    def count(self, device: int, counter: HardwareCounter, amount: int) -> None:
        """Count errors of a device."""
        counters = self.devices[device]
        self.devices[device] = replace(counters, **{counter: getattr(counters, counter) + amount})

    def counted(self) -> dict[int, HardwareCounters]:
        """Return the counters of the devices that have any errors."""
        return {device: counters for device, counters in enumerate(self.devices) if counters != NO_ERRORS}
