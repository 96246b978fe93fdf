"""The module `torch.xla`: the functions and classes that torch's own code, and scripts for any device, expect of one.

`torch.utils.checkpoint`, `torch.random.fork_rng` and autocast look here.
"""

# ruff: noqa: SLF001, ARG004
# Torch's signatures.

from __future__ import annotations

import time
import types
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch

from neurontools.runtime.host_activity import HostEvent, observers
from neurontools.runtime.session import is_forked
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_name import device_name
from neurontools.xla.host_events import Observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from neurontools.xla.engine import CurrentDevice, DeviceEngine

    Device: TypeAlias = torch.device | str | int | None

_MEMORY_KINDS = ("active_bytes", "allocated_bytes", "requested_bytes", "reserved_bytes")
_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What `torch.xla.get_device_properties` returns. `total_memory` is in bytes, `name` as in NC_v2."""

    name: str
    total_memory: int


class DeviceContext:
    """Makes a device the current one of this thread inside a block; None or -1 changes nothing."""

    def __init__(self, current: CurrentDevice, index: int | None) -> None:
        self._current = current
        self._index = index
        self._before = 0

    def __enter__(self) -> None:
        self._before = self._current.index
        if self._index is not None and self._index >= 0:
            self._current.set(self._index)

    def __exit__(self, *exception: object) -> None:
        self._current.set(self._before)


class DeviceFunctions:
    """The functions of `torch.xla`. A `device` may be a torch.device, a name or an index; by default the current one."""

    def __init__(self, engine: DeviceEngine) -> None:
        self._engine = engine
        self.current = engine.current

    def index_of(self, device: Device) -> int:
        """Return the position of a device in this process.

        Raises:
            DeviceError: it is of another type, or this process has no such core.
        """
        index = device if isinstance(device, int) else None
        if index is None and device is not None:
            named = torch.device(device)
            if named.type != device_name():
                raise DeviceError(f"{named} is not a {device_name()} device", f"use {device_name()}:INDEX")
            index = named.index
        if index is None:
            return self.current.index
        if index > 0:  # the first one exists; looking for others opens the cores
            self._engine.check_device(index)
            return self._engine.position_of(index)
        return index

    def is_idle(self, index: int) -> bool:
        """Return whether nothing is recorded on a device."""
        return self._engine.pending(index) == 0

    def recording(self, index: int) -> object:
        """Return the identity of the work recorded on a device, or None."""
        return self._engine.recording(index)

    # Devices

    def device_count(self) -> int:
        """Return the number of NeuronCores of this process; opens the device."""
        return self._engine.accelerator.core_count()

    def current_device(self) -> int:
        """Return the index of the device that a name without an index stands for in this thread."""
        return self.current.index

    def set_device(self, device: Device) -> None:
        """Make a device the current one of this thread; a negative index changes nothing."""
        index = self.index_of(device)
        if index >= 0:
            self.current.set(index)

    def device(self, device: Device) -> DeviceContext:
        """Return a context in which a device is the current one."""
        return DeviceContext(self.current, None if device is None else self.index_of(device))

    def device_of(self, tensor: Any) -> DeviceContext:
        """Return a context in which a tensor's device is the current one; other devices change nothing."""
        return DeviceContext(
            self.current, tensor.get_device() if tensor.device.type == device_name() else None
        )

    def synchronize(self, device: Device = None) -> None:
        """End the recording of a device and run it."""
        with Observed(HostEvent.WAIT, "synchronize") if observers else nullcontext():
            self._engine.sync(self.index_of(device), "synchronize")

    def get_device_name(self, device: Device = None) -> str:
        """Return the core version, such as NC_v2."""
        return self.get_device_properties(device).name

    def get_device_properties(self, device: Device = None) -> DeviceProperties:
        """Return name and memory of a device."""
        total = self._engine.memory(self.index_of(device)).limit_bytes
        return DeviceProperties(self._engine.accelerator.device_kind(), total)

    # Memory

    def memory_allocated(self, device: Device = None) -> int:
        """Return the device memory in use, in bytes."""
        return self._engine.memory(self.index_of(device)).used_bytes

    def max_memory_allocated(self, device: Device = None) -> int:
        """Return the most device memory that was in use, in bytes."""
        return self._engine.memory(self.index_of(device)).peak_bytes

    def memory_stats(self, device: Device = None) -> dict[str, int]:
        """Return `memory_allocated` and `max_memory_allocated` under torch's names.

        The device reserves what tensors take, and all of that is active: the three are equal.
        """
        memory = self._engine.memory(self.index_of(device))
        numbers = {"current": memory.used_bytes, "peak": memory.peak_bytes}
        return {f"{kind}.all.{name}": value for kind in _MEMORY_KINDS for name, value in numbers.items()}

    def reset_peak_memory_stats(self, device: Device = None) -> None:
        """Let the peak start again at the memory in use."""
        self._engine.reset_peak_memory(self.index_of(device))

    def reset_accumulated_memory_stats(self, device: Device = None) -> None:
        """Do nothing: nothing is added up over time."""

    def mem_get_info(self, device: Device = None) -> tuple[int, int]:
        """Return free and total device memory, in bytes."""
        memory = self._engine.memory(self.index_of(device))
        return memory.limit_bytes - memory.used_bytes, memory.limit_bytes

    def empty_cache(self) -> None:
        """Do nothing: device memory is given back with the last tensor that uses it."""

    # Random numbers

    def manual_seed(self, seed: int) -> None:
        """Seed the random numbers of the current device."""
        self._engine.seed(int(seed), self.current.index)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the random numbers of all devices."""
        self._engine.seed(int(seed))

    def seed(self) -> None:
        """Seed the current device with a number of the operating system."""
        self.manual_seed(torch.Generator().seed())

    def seed_all(self) -> None:
        """Seed all devices with a number of the operating system."""
        self.manual_seed_all(torch.Generator().seed())

    def initial_seed(self) -> int:
        """Return the seed of the current device."""
        return self._engine.initial_seed(self.current.index)

    def get_rng_state(self, device: Device = None) -> torch.Tensor:
        """Return the state of a device's random numbers, as bytes on the device; costs no synchronization."""
        return self._engine.rng_state(self.index_of(device))

    def set_rng_state(self, new_state: torch.Tensor, device: Device = None) -> None:
        """Continue a device's random numbers at a state."""
        self._engine.set_rng_state(self.index_of(device), new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the states of all devices."""
        return [self.get_rng_state(index) for index in range(self.device_count())]

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Continue the random numbers of all devices at their states."""
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    # Streams

    def current_stream(self, device: Device = None) -> Stream:
        """Return the queue of a device."""
        return Stream(device)

    def default_stream(self, device: Device = None) -> Stream:
        """Return the queue of a device."""
        return Stream(device)

    def set_stream(self, stream: Stream) -> None:
        """Do nothing: a device has one queue."""

    def stream(self, stream: Stream | None) -> Any:
        """Return a context in which a stream's device is the current one; None changes nothing."""
        return DeviceContext(self.current, None if stream is None else stream.device_index)

    # What torch asks

    def is_available(self) -> bool:
        """Return True: a program that has this module has the device."""
        return True

    def is_initialized(self) -> bool:
        """Return True: the first use opens the cores."""
        return True

    def init(self) -> None:
        """Do nothing: the first use opens the cores."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the types that autocast may compute in."""
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        """Return True: every NeuronCore computes in bfloat16."""
        return True

    def _is_in_bad_fork(self) -> bool:
        return is_forked()


def make_module(engine: DeviceEngine) -> types.ModuleType:
    """Return the module `torch.xla` of an engine."""
    module = types.ModuleType(f"torch.{device_name()}", __doc__)
    functions = Stream._functions = Event._functions = DeviceFunctions(engine)
    for name in _function_names():
        setattr(module, name, getattr(functions, name))
    contents = {
        "_initialized": True,  # torch.utils.checkpoint keeps no random state otherwise
        "Stream": Stream,
        "Event": Event,
    }
    for name, value in contents.items():
        setattr(module, name, value)
    return module


def _function_names() -> Iterator[str]:
    hidden = {"index_of", "is_idle", "recording"}
    for name in vars(DeviceFunctions):
        if not name.startswith("__") and name not in hidden:
            yield name


class Queues(Protocol):
    """What streams and events ask of the devices. `index` is the position of a device in this process."""

    current: CurrentDevice

    def index_of(self, device: Device) -> int:
        """Return the position of a device."""

    def synchronize(self, device: Device = None) -> None:
        """Run the operators recorded on a device."""

    def is_idle(self, index: int) -> bool:
        """Return whether nothing is recorded on a device."""

    def recording(self, index: int) -> object:
        """Return the identity of the work recorded on a device, or None."""


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
        """Do nothing: operators run in the order of their recording."""

    def wait_stream(self, stream: torch.Stream) -> None:
        """Do nothing: operators run in the order of their recording."""


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
        """Do nothing: operators run in the order of their recording."""

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
