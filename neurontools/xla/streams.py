"""Streams and events of the device. Graphs run one after the other in one queue per device, so streams change nothing.

They are streams and events of torch, so that `Tensor.record_stream` and `torch.accelerator.set_stream` take them.
"""

# ruff: noqa: ARG004, SLF001
# Torch's signatures.

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch

from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_name import device_name

if TYPE_CHECKING:
    from typing import TypeAlias

    from neurontools.xla.engine import CurrentDevice

    Device: TypeAlias = torch.device | str | int | None

_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)


class Queues(Protocol):
    """What streams and events ask of the devices. `index` is the position of a device in this process."""

    current: CurrentDevice

    def index_of(self, device: Device) -> int:
        """Return the position of a device."""

    def synchronize(self, device: Device = None) -> None:
        """Run what is recorded on a device."""

    def is_idle(self, index: int) -> bool:
        """Return whether nothing is recorded on a device."""

    def recording(self, index: int) -> object:
        """Return what identifies the work recorded on a device, None if there is none."""


class Stream(torch.Stream):  # type: ignore[misc]
    """The only queue of a device: everything on the device runs in program order.

    Args:
        device: the device, the current one by default.
        priority: ignored, there is one queue.
    """

    _functions: Queues

    def __new__(cls, device: Device = None, priority: int = 0) -> Self:  # noqa: D102
        index = cls._functions.index_of(device)
        made: Self = super().__new__(cls, stream_id=0, device_index=index, device_type=_TYPE)
        return made

    def __repr__(self) -> str:
        return f"torch.{device_name()}.Stream(device={self.device})"

    def synchronize(self) -> None:
        """End the recording and run it."""
        self._functions.synchronize(self.device_index)

    def query(self) -> bool:
        """Return whether nothing is recorded that has not run."""
        return self._functions.is_idle(self.device_index)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one by default, and return it."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Do nothing: what is recorded before comes first anyway."""

    def wait_stream(self, stream: torch.Stream) -> None:
        """Do nothing: what is recorded before comes first anyway."""


class Event(torch.Event):  # type: ignore[misc]
    """A point of the program.

    Args:
        enable_timing: measure host time; recording the event then ends the graph, so that the work before it has run.
        blocking: ignored, waiting always blocks.
        interprocess: ignored, no other process sees it.
    """

    _functions: Queues

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Self:  # noqa: D102
        made: Self = super().__new__(cls, device=device_name(), enable_timing=enable_timing)
        made._timed = enable_timing
        made._index = made._at_ns = 0
        made._recording = None
        return made

    def __repr__(self) -> str:
        return f"torch.{device_name()}.Event(enable_timing={self._timed})"

    def record(self, stream: torch.Stream | None = None) -> None:
        """Put the event here, on a stream's device or the current one."""
        self._index = self._functions.current.index if stream is None else stream.device_index
        if self._timed:
            self._functions.synchronize(self._index)
            self._at_ns = time.perf_counter_ns()
        self._recording = self._functions.recording(self._index)

    def query(self) -> bool:
        """Return whether all work before the event has run."""
        return self._recording is None or self._recording is not self._functions.recording(self._index)

    def synchronize(self) -> None:
        """Run the work before the event, if it has not run."""
        if not self.query():
            self._functions.synchronize(self._index)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Do nothing: what is recorded before comes first anyway."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds of host time from this event to another.

        Raises:
            DeviceError: one of them was made without enable_timing=True, or not recorded.
        """
        if not (self._at_ns and end._at_ns):
            raise DeviceError(
                "an event has no time", "make both events with enable_timing=True, and record both"
            )
        return float(end._at_ns - self._at_ns) / 1e6
