"""The counters of a machine since it was created; they outlive processes and daemons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from neurontools.machine.events import (
    CountHardware,
    DeviceChanged,
    Effect,
    Invalid,
    Refused,
    ResetHardware,
    no_device,
)
from neurontools.machine.snapshot import NO_ERRORS, CoreTotals, HardwareCounter, HardwareCounters

if TYPE_CHECKING:
    from collections.abc import Mapping


class History(Struct, frozen=True):
    """The counters of a machine.

    `lifetime` are named counters of the whole machine, `core_totals` what exited processes did on each core,
    `hardware` the memory errors of each device that has any.
    """

    lifetime: dict[str, int] = field(default_factory=dict)
    core_totals: tuple[CoreTotals, ...] = ()
    hardware: dict[int, HardwareCounters] = field(default_factory=dict)


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
            return (Refused(no_device(event.device, len(self.devices))),)
        if isinstance(event, CountHardware):
            if event.amount <= 0:
                return (Refused(Invalid(f"invalid number of errors {event.amount}: must be at least 1")),)
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
