"""The methods of neurond: the parameters and the result of each, as both sides of the wire see them.

`method` is the name on the wire. Parameters that are null count as not given. `inject_fault` takes a `FaultSpec`.
Requests that change the whole machine are events of the state machine (`events.Event`) as they are.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from neurontools.machine.faults.params import Action, Fault, Hit
from neurontools.machine.protocol import MAX_DESCRIPTORS, Count, ErrorBody, Request
from neurontools.machine.snapshot import HardwareCounter

Positive = Annotated[int, Meta(ge=1, le=1 << 62)]
MAX_RESERVATIONS = 10_000


class Empty(Struct, frozen=True):
    """The result of a method that has nothing to report."""


class DescribeRequest(Request, frozen=True):
    """Ask for the facts and sizes of the machine."""

    method: ClassVar[str] = "describe"


class MachineDescription(Struct, frozen=True):
    """The facts and sizes of a machine."""

    machine: str
    instance_type: str
    instance_id: str
    lnc: int
    device_count: int
    core_count: int
    claimed_core_count: int
    device_memory_bytes: int
    process_count: int
    client_count: int
    pid: int
    socket: str
    started_unix_s: float
    idle_exit_s: float | None
    parent_pid: int | None
    protocol: int
    version: str


class SnapshotRequest(Request, frozen=True):
    """Ask for a `Snapshot`."""

    method: ClassVar[str] = "snapshot"


class WatchRequest(Request, frozen=True):
    """Ask for a snapshot every `period_s` seconds; with `changes` only the first is whole."""

    method: ClassVar[str] = "watch"
    period_s: Annotated[float, Meta(ge=0.05, le=3600)]
    changes: bool = False


class StopRequest(Request, frozen=True):
    """End the daemon; `force` does so while processes hold cores."""

    method: ClassVar[str] = "stop"
    force: bool = False


class ProcessSpec(Request, frozen=True):
    """A process to put on the machine, with these cores, or `count` cores (0 or None: all)."""

    tag: str = ""
    command: str = ""
    uses_device: bool = True
    cores: tuple[int, ...] | None = None
    count: Count | None = None
    runtime_version: str = "NA"


class RegisterRequest(ProcessSpec, frozen=True):
    """Put the calling process on the machine; `pid` must be its own, `reset_cores` repairs its cores."""

    method: ClassVar[str] = "register"
    reset_cores: bool = True
    pid: Positive | None = None


class ProcessPlace(Struct, frozen=True):
    """The place of a registered process on the machine; the descriptor of its page travels with the answer."""

    cores: tuple[int, ...]
    instance_type: str
    lnc: int
    machine: str


class UnregisterRequest(Request, frozen=True):
    """Take the calling process off the machine."""

    method: ClassVar[str] = "unregister"


class FreedCores(Struct, frozen=True):
    """The cores that are free now."""

    cores: tuple[int, ...]


class ReserveRequest(Request, frozen=True):
    """Set the device memory that is reserved for a core of the calling process to `total_bytes`."""

    method: ClassVar[str] = "reserve"
    core: Count
    total_bytes: Count


class Reserved(Struct, frozen=True):
    """The device memory that a process holds for a core."""

    reserved_bytes: int


class SyntheticSpec(ProcessSpec, frozen=True):
    """A synthetic process to add; `uid` None is the player's own user."""

    uid: Count | None = None


class RegisterSyntheticRequest(Request, frozen=True):
    """Add synthetic processes of the calling process; of those it has, only the pids in `known` stay."""

    method: ClassVar[str] = "register_synthetic"
    processes: Annotated[tuple[SyntheticSpec, ...], Meta(max_length=MAX_DESCRIPTORS)]
    known: tuple[int, ...] | None = None


class SyntheticOutcome(Struct, frozen=True, omit_defaults=True):
    """The place of a synthetic process, or the error that kept it off the machine."""

    pid: int = 0
    start_ticks: int = 0
    cores: tuple[int, ...] | None = None
    error: ErrorBody | None = None


class SyntheticOutcomes(Struct, frozen=True):
    """One outcome for each process; descriptors of the pages of those without an error travel with the answer."""

    processes: tuple[SyntheticOutcome, ...]


class UnregisterSyntheticRequest(Request, frozen=True):
    """Take synthetic processes of the calling process off the machine."""

    method: ClassVar[str] = "unregister_synthetic"
    pids: tuple[int, ...] = ()


class Reservation(Struct, frozen=True, forbid_unknown_fields=True):
    """The device memory that a synthetic process holds on a core from now on."""

    pid: Positive
    core: Count
    nbytes: Count


class ReserveSyntheticRequest(Request, frozen=True):
    """Set the device memory of synthetic processes."""

    method: ClassVar[str] = "reserve_synthetic"
    changes: Annotated[tuple[Reservation, ...], Meta(max_length=MAX_RESERVATIONS)]


class ReservationOutcome(Struct, frozen=True, omit_defaults=True):
    """What a synthetic process holds now, or the error that kept it as it was."""

    reserved_bytes: int | None = None
    error: ErrorBody | None = None


class ReservationOutcomes(Struct, frozen=True):
    """One outcome for each reservation."""

    changes: tuple[ReservationOutcome, ...]


class CountHardware(Request, frozen=True):
    """Count memory errors of a device."""

    method: ClassVar[str] = "count_hardware"
    device: Count
    counter: HardwareCounter
    amount: Positive = 1


class ResetHardware(Request, frozen=True):
    """Set an error counter of a device to zero, or all of them (None)."""

    method: ClassVar[str] = "reset_hardware"
    device: Count
    counter: HardwareCounter | None = None


class ResetDevice(Request, frozen=True):
    """Reset a device; `force` does so while processes hold cores of it."""

    method: ClassVar[str] = "reset_device"
    device: Count
    force: bool = False


class InjectedFault(Struct, frozen=True):
    """The fault as it stands in the machine."""

    fault: Fault


class ListFaultsRequest(Request, frozen=True):
    """Ask for the faults of the machine."""

    method: ClassVar[str] = "list_faults"


class FaultList(Struct, frozen=True):
    """The faults of the machine, oldest first."""

    faults: tuple[Fault, ...]


class ClearFaults(Request, frozen=True):
    """End faults and what they broke; None: all of them."""

    method: ClassVar[str] = "clear_faults"
    ids: tuple[int, ...] | None = None


class ClearedFaults(Struct, frozen=True):
    """The ids of the faults that were ended."""

    ids: tuple[int, ...]


class TakeFaultRequest(Request, frozen=True):
    """Ask what happens to an execution or allocation that is about to begin, and count it.

    `pid` is the process, None for the caller; others, synthetic ones too, are for the machine's owner and root.
    """

    method: ClassVar[str] = "take_fault"
    core: Count
    pid: Positive | None = None
    action: Action = Action.EXECUTION
    collective: bool = False
    nbytes: Count = 0


class TakenFault(Struct, frozen=True):
    """How a fault hits; None: nothing happens."""

    hit: Hit | None


class HoldsFaultRequest(Request, frozen=True):
    """Ask whether an execution that hangs because of a fault must keep hanging."""

    method: ClassVar[str] = "holds_fault"
    fault: Positive
    core: Count
    pid: Positive | None = None


class HeldFault(Struct, frozen=True):
    """Whether the execution still has to hang."""

    holds: bool


class ReleaseFault(Request, frozen=True):
    """Report that an execution of a process (None: the caller) no longer hangs, because it timed out."""

    method: ClassVar[str] = "release_fault"
    core: Count
    pid: Positive | None = None


class ProfileRequest(Request, frozen=True):
    """Ask a process of the caller's user to profile itself into a directory."""

    method: ClassVar[str] = "profile"
    pid: Positive
    directory: str


class EndProfileRequest(Request, frozen=True):
    """Withdraw what asks a process of the caller's user to profile itself into a directory."""

    method: ClassVar[str] = "end_profile"
    pid: Positive
    directory: str


class ProfileDirectoryRequest(Request, frozen=True):
    """Ask where the calling process is to profile itself to."""

    method: ClassVar[str] = "profile_directory"


class ProfileDirectory(Struct, frozen=True):
    """Where a process is asked to profile itself to, "" for nowhere: perhaps what another viewer asked for."""

    directory: str
