"""Events of the simulated machine and their effects. Requests of clients that need no more than they say are events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.machine.faults.params import FaultSpec
from neurontools.machine.processes import ProcessKey
from neurontools.machine.requests import ClearFaults, CountHardware, ReleaseFault, ResetDevice, ResetHardware

if TYPE_CHECKING:
    from neurontools.machine.faults.params import Fault, Hit, Victim
    from neurontools.machine.requests import ProcessSpec
    from neurontools.machine.snapshot import CoreTotals


class Process(Struct, frozen=True):
    """A registered process with its claims.

    `reserved` are pairs of core and bytes of device memory, by core, without zeros. `registered_ns` is
    CLOCK_MONOTONIC. `player` is the process that added a synthetic one and with which that one ends. `stack` is
    `processes.stack_start` of the program that registered, 0 where that is not known.
    """

    key: ProcessKey
    uid: int
    tag: str
    command: str
    runtime_version: str
    uses_device: bool
    cores: tuple[int, ...]
    registered_ns: int
    reserved: tuple[tuple[int, int], ...] = ()
    player: ProcessKey | None = None
    stack: int = 0

    @property
    def origin(self) -> str:
        """The value of `ProcessState.origin`."""
        return "live" if self.player is None else "synthetic"

    @property
    def ends_with(self) -> ProcessKey:
        """The process of this host with which it ends."""
        return self.player or self.key

    def reserved_on(self, core: int) -> int:
        """Return the bytes reserved on a core."""
        return dict(self.reserved).get(core, 0)


@dataclass(frozen=True, slots=True)
class Register:
    """A process joins the machine.

    A synthetic one has a key that no process of the host can have, and ends with its `player`. `reset_cores` repairs
    the cores that memory errors broke, as NEURON_RT_RESET_CORES does.
    """

    key: ProcessKey
    uid: int
    spec: ProcessSpec
    player: ProcessKey | None = None
    reset_cores: bool = True
    stack: int = 0


@dataclass(frozen=True, slots=True)
class Adopt:
    """A process that a former daemon registered still runs."""

    process: Process


@dataclass(frozen=True, slots=True)
class Leave:
    """A process unregisters, or has exited.

    `totals` are the counts of its telemetry page, by lifetime counter, `core_totals` the same by core.
    """

    key: ProcessKey
    totals: tuple[tuple[str, int], ...] = ()
    core_totals: tuple[CoreTotals, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserve:
    """A process sets the device memory that is reserved for a core that it claims to `total_bytes`."""

    key: ProcessKey
    core: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class TakeFault:
    """A process is about to execute or allocate."""

    victim: Victim


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: faults become due, memory errors come."""


FaultEvent = FaultSpec | ClearFaults | TakeFault | ReleaseFault | Tick
HardwareEvent = CountHardware | ResetHardware
Event = Register | Adopt | Leave | Reserve | HardwareEvent | ResetDevice | FaultEvent


@dataclass(frozen=True, slots=True)
class Joined:
    """A process has joined the machine."""

    process: Process


@dataclass(frozen=True, slots=True)
class Changed:
    """A process holds another amount of memory."""

    process: Process


@dataclass(frozen=True, slots=True)
class Left:
    """A process has left the machine; its cores and memory are free."""

    process: Process


@dataclass(frozen=True, slots=True)
class DeviceChanged:
    """The error counters or the state of a device changed."""

    device: int


@dataclass(frozen=True, slots=True)
class FaultInjected:
    """A fault was injected; `fault` shows it as injected, even if it is over."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class FaultsCleared:
    """Faults have ended."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FaultTaken:
    """What happens to the execution or allocation in question; None: nothing."""

    hit: Hit | None


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A line of the kernel log."""

    text: str


Effect = Joined | Changed | Left | DeviceChanged | FaultInjected | FaultsCleared | FaultTaken | KernelLine
