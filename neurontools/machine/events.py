"""Events of the simulated machine, their effects, and reasons of a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.machine.machine_names import unknown_index
from neurontools.machine.processes import ProcessKey

if TYPE_CHECKING:
    from neurontools.machine.faults.params import Fault, FaultSpec, Hit, Victim
    from neurontools.machine.snapshot import CoreTotals, HardwareCounter


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
    """A process joins the machine, with these cores, or with `count` cores (0: all of the machine).

    A synthetic one has a key that no process of the host can have, and ends with its `player`. `reset_cores` repairs
    the cores that memory errors broke, as NEURON_RT_RESET_CORES does.
    """

    key: ProcessKey
    uid: int
    tag: str
    command: str
    runtime_version: str
    uses_device: bool
    cores: tuple[int, ...] | None = None
    count: int | None = None
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
class CountHardware:
    """A device has memory errors."""

    device: int
    counter: HardwareCounter
    amount: int = 1


@dataclass(frozen=True, slots=True)
class ResetHardware:
    """An error counter of a device is set to zero, or all of them (None)."""

    device: int
    counter: HardwareCounter | None = None


@dataclass(frozen=True, slots=True)
class InjectFault:
    """A fault is injected."""

    spec: FaultSpec


@dataclass(frozen=True, slots=True)
class ClearFaults:
    """Faults and what they broke end, by id, or all of them (None)."""

    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TakeFault:
    """A process is about to execute or allocate."""

    victim: Victim


@dataclass(frozen=True, slots=True)
class ReleaseFault:
    """An execution no longer hangs."""

    pid: int
    core: int


@dataclass(frozen=True, slots=True)
class ResetDevice:
    """A device is reset; `force` does so while processes hold cores of it."""

    device: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: faults become due, memory errors come."""


FaultEvent = InjectFault | ClearFaults | TakeFault | ReleaseFault | Tick
Event = Register | Adopt | Leave | Reserve | CountHardware | ResetHardware | ResetDevice | FaultEvent


@dataclass(frozen=True, slots=True)
class CoresBusy:
    """Cores are not free. `requested` are ids, empty when a number of any cores (`count`) was requested.

    `available` is the number of free cores among those requested, `owners` the processes that hold the others.
    """

    requested: tuple[int, ...]
    count: int
    available: int
    owners: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A device has too little free memory; all in bytes."""

    device: int
    total: int
    used: int
    needed: int


@dataclass(frozen=True, slots=True)
class Invalid:
    """The request is not valid on this machine."""

    message: str
    remedy: str = ""


def no_device(device: int, device_count: int) -> Invalid:
    """Return the refusal of a device that the machine does not have."""
    return Invalid(*unknown_index("device", device, range(device_count)))


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device is lost."""

    device: int


@dataclass(frozen=True, slots=True)
class DeviceBusy:
    """Processes hold cores of a device."""

    device: int
    owners: tuple[Process, ...]


Refusal = CoresBusy | OutOfMemory | Invalid | DeviceLost | DeviceBusy


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing changed, for this reason."""

    reason: Refusal


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


Effect = (
    Refused
    | Joined
    | Changed
    | Left
    | DeviceChanged
    | FaultInjected
    | FaultsCleared
    | FaultTaken
    | KernelLine
)
