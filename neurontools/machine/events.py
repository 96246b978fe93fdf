"""What goes into the simulated machine and what comes out: events, effects, reasons of a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.machine.faults.spec import Fault, FaultSpec, Hit, Victim
    from neurontools.machine.hardware import CoreTotals, HardwareCounter
    from neurontools.machine.processes import ProcessKey


@dataclass(frozen=True, slots=True)
class Layout:
    """The resources of a machine. Logical core ids count through the devices: device = core // cores_per_device.

    `links` are the neighbours of each device; empty where nobody asks for them.
    """

    device_count: int
    cores_per_device: int
    memory_bytes: int
    links: tuple[tuple[int, ...], ...] = ()

    @property
    def core_count(self) -> int:
        """Logical cores of the whole machine."""
        return self.device_count * self.cores_per_device

    def device_of(self, core: int) -> int:
        """Return the device of a core."""
        return core // self.cores_per_device

    def cores_of(self, device: int) -> range:
        """Return the cores of a device."""
        return range(device * self.cores_per_device, (device + 1) * self.cores_per_device)


@dataclass(frozen=True, slots=True)
class Process:
    """A registered process with its claims.

    `reserved` are pairs of core and bytes of device memory, by core, without zeros. `registered_ns` is
    CLOCK_MONOTONIC. `player` is the process that made a synthetic one up and with which that one ends.
    `stack` is `processes.stack_of` the program that registered, 0 where that is not known.
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
        """What `ProcessState.origin` says of it."""
        return "live" if self.player is None else "synthetic"

    @property
    def lives_with(self) -> ProcessKey:
        """The process of this host whose end is its end."""
        return self.player or self.key

    def reserved_on(self, core: int) -> int:
        """Return the bytes reserved on a core."""
        return dict(self.reserved).get(core, 0)


@dataclass(frozen=True, slots=True)
class Register:
    """A process wants to be on the machine, with these cores, or with so many (0: all of the machine).

    A synthetic one has a key that no process of the host can have, and is there as long as its `player`.
    `reset_cores` mends what memory errors broke of the cores, as NEURON_RT_RESET_CORES says.
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
    """A process that a former daemon registered still lives."""

    process: Process


@dataclass(frozen=True, slots=True)
class Leave:
    """A process unregisters, or is gone.

    `totals` are what its telemetry page counted, by lifetime counter, `core_totals` the same by core.
    """

    key: ProcessKey
    totals: tuple[tuple[str, int], ...] = ()
    core_totals: tuple[CoreTotals, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocate:
    """A process reserves device memory on a core that it claims.

    `held` is set when this request, or an earlier one, may have been handled without an answer (the connection
    broke): what the process knows to hold on the core. It holds that and `nbytes` afterwards, whatever was booked.
    """

    key: ProcessKey
    core: int
    nbytes: int
    held: int | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """A process gives device memory back; `held` as in `Allocate`."""

    key: ProcessKey
    core: int
    nbytes: int
    held: int | None = None


@dataclass(frozen=True, slots=True)
class CountHardware:
    """A device meets memory errors."""

    device: int
    counter: HardwareCounter
    amount: int = 1


@dataclass(frozen=True, slots=True)
class ResetHardware:
    """Somebody sets an error counter of a device to zero, or all of them (None)."""

    device: int
    counter: HardwareCounter | None = None


@dataclass(frozen=True, slots=True)
class InjectFault:
    """Somebody wants something to go wrong."""

    spec: FaultSpec


@dataclass(frozen=True, slots=True)
class ClearFaults:
    """Somebody ends faults and what they broke, by number, or all of them (None)."""

    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TakeFault:
    """A process is about to execute or allocate and asks what happens to it."""

    victim: Victim


@dataclass(frozen=True, slots=True)
class ReleaseFault:
    """An execution does not hang any more."""

    pid: int
    core: int


@dataclass(frozen=True, slots=True)
class ResetDevice:
    """Somebody resets a device; `force` does so while processes hold cores of it."""

    device: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: faults become due, memory errors come."""


FaultEvent = InjectFault | ClearFaults | TakeFault | ReleaseFault | Tick
Event = Register | Adopt | Leave | Allocate | Free | CountHardware | ResetHardware | ResetDevice | FaultEvent


@dataclass(frozen=True, slots=True)
class CoresBusy:
    """Cores are not free. `requested` are ids, empty when a number of any cores (`count`) was asked for.

    `available` is the number of free cores among those asked for, `owners` the processes that hold the others.
    """

    requested: tuple[int, ...]
    count: int
    available: int
    owners: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A device's memory does not hold what is asked for; all in bytes."""

    device: int
    total: int
    used: int
    needed: int


@dataclass(frozen=True, slots=True)
class Invalid:
    """The request makes no sense on this machine."""

    message: str


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device is not there any more."""

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
    """A process is on the machine now."""

    process: Process


@dataclass(frozen=True, slots=True)
class Changed:
    """A process holds other memory than before."""

    process: Process


@dataclass(frozen=True, slots=True)
class Left:
    """A process is not on the machine any more; its cores and memory are free."""

    process: Process


@dataclass(frozen=True, slots=True)
class DeviceChanged:
    """A device counts other errors than before, or is in another state."""

    device: int


@dataclass(frozen=True, slots=True)
class FaultInjected:
    """A fault is in the machine; one that is over at once is told as it was."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class FaultsCleared:
    """Faults are gone."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FaultTaken:
    """What happens to the execution or allocation that was asked about; None: nothing."""

    hit: Hit | None


@dataclass(frozen=True, slots=True)
class KernelLine:
    """The kernel says so."""

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
