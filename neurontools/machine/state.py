"""The rules of the simulated machine: who holds which cores and how much device memory.

Pure: no sockets, no clock, no randomness. `handle` takes an event and the time and returns effects, which the
caller (the daemon, a test) carries out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.events import (
    Adopt,
    Changed,
    CoresBusy,
    CountHardware,
    DeviceBusy,
    DeviceChanged,
    DeviceLost,
    Effect,
    Event,
    Invalid,
    Joined,
    Leave,
    Left,
    OutOfMemory,
    Process,
    Refusal,
    Refused,
    Register,
    Reserve,
    ResetDevice,
    ResetHardware,
    no_device,
)
from neurontools.machine.faults.registry import ErrorCounters, FaultRules
from neurontools.machine.machine_names import unknown_index
from neurontools.machine.snapshot import History

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.machine.devices import Layout
    from neurontools.machine.faults.registry import FaultRecord
    from neurontools.machine.processes import ProcessKey

PROCESSES = "processes"
CLAIMS_REFUSED = "claims_refused"
ALLOCATIONS_REFUSED = "allocations_refused"
ALL_CORES = 0


class MachineState:
    """Devices, logical cores with their owners, device memory, processes and what they did in total.

    Args:
        layout: the resources.
        history: the counters so far.
        faults: its faults.
    """

    def __init__(
        self, layout: Layout, history: History | None = None, faults: FaultRecord | None = None
    ) -> None:
        past = history or History()
        self.layout = layout
        self.lifetime = dict(past.lifetime)
        cores = range(layout.core_count)
        self.core_totals = {totals.core: totals for totals in past.core_totals if totals.core in cores}
        self._errors = ErrorCounters(layout.device_count, past.hardware)
        self.hardware = self._errors.devices
        self._fault_rules = FaultRules(layout, self._errors, faults)
        self.faults = self._fault_rules.registry
        self.processes: dict[ProcessKey, Process] = {}
        self._owners: list[ProcessKey | None] = [None] * layout.core_count
        self._used_bytes = [0] * layout.device_count

    def handle(self, event: Event, now_ns: int) -> tuple[Effect, ...]:
        """Apply an event.

        Args:
            event: what happened.
            now_ns: CLOCK_MONOTONIC.

        Returns:
            The effects; a request that can't be granted changes nothing but a counter and gives one `Refused`.
        """
        match event:
            case Register():
                return self._register(event, now_ns)
            case Adopt():
                return self._adopt(event.process)
            case Leave():
                return self._leave(event)
            case Reserve():
                return self._reserve(event)
            case CountHardware() | ResetHardware():
                return self._errors.handle(event)
            case ResetDevice():
                return self._reset_device(event)
            case _:
                return self._fault_rules.handle(event, now_ns)

    def owner(self, core: int) -> Process | None:
        """Return the process that claims a core."""
        key = self._owners[core]
        return None if key is None else self.processes[key]

    def used_bytes(self, device: int) -> int:
        """Return the reserved memory of a device."""
        return self._used_bytes[device]

    def claimed_count(self) -> int:
        """Return the number of claimed cores."""
        return sum(owner is not None for owner in self._owners)

    def history(self) -> History:
        """Return the counters so far, without those of running processes."""
        return History(dict(self.lifetime), tuple(self.core_totals.values()), self._errors.counted())

    def _register(self, event: Register, now_ns: int) -> tuple[Effect, ...]:
        if event.key in self.processes:
            return (Refused(Invalid(f"process {event.key.pid} is already registered")),)
        cores = self._choose(event)
        if isinstance(cores, CoresBusy):
            self._count(CLAIMS_REFUSED)
        if not isinstance(cores, tuple):
            return (Refused(cores),)
        process = Process(
            key=event.key,
            uid=event.uid,
            tag=event.tag,
            command=event.command,
            runtime_version=event.runtime_version,
            uses_device=event.uses_device,
            cores=cores,
            registered_ns=now_ns,
            player=event.player,
            stack=event.stack,
        )
        if event.uses_device:
            self._count(PROCESSES)
        if event.reset_cores:
            self.faults.reset(cores)
        return self._join(process)

    def _choose(self, event: Register) -> tuple[int, ...] | Refusal:
        if not event.uses_device:
            if event.cores or event.count:
                return Invalid("a process that does not use the device can't claim cores")
            return ()
        if event.cores is not None:
            return self._choose_ids(event.cores)
        return self._choose_count(event.count or ALL_CORES)

    def _choose_ids(self, cores: tuple[int, ...]) -> tuple[int, ...] | Refusal:
        chosen = self._adoptable(cores)
        return self._lost_device(cores) or chosen if isinstance(chosen, tuple | CoresBusy) else chosen

    def _adoptable(self, cores: tuple[int, ...]) -> tuple[int, ...] | Refusal:
        count = self.layout.core_count
        if not cores or len(set(cores)) < len(cores):
            return Invalid("no cores, or one core twice", "list each core to claim once")
        unknown = [core for core in cores if not 0 <= core < count]
        if unknown:
            return Invalid(*unknown_index("core", unknown[0], range(count)))
        return self._busy_cores(cores, cores, len(cores)) or cores

    def _choose_count(self, count: int) -> tuple[int, ...] | Refusal:
        everything = range(self.layout.core_count)
        if count < 0:
            return Invalid(f"invalid number of cores {count}: must be at least 0")
        if count == ALL_CORES:
            return (
                self._lost_device(everything)
                or self._busy_cores((), everything, len(everything))
                or tuple(everything)
            )
        free_run = 0
        for core in everything:
            usable = self._owners[core] is None and not self._lost_device((core,))
            free_run = free_run + 1 if usable else 0
            if free_run == count:
                return tuple(range(core + 1 - count, core + 1))
        return self._refuse((), everything, count)

    def _lost_device(self, cores: Iterable[int]) -> DeviceLost | None:
        devices = dict.fromkeys(map(self.layout.device_of, cores))
        return next(
            (DeviceLost(device) for device in devices if self.faults.lost_by(device) is not None), None
        )

    def _busy_cores(self, requested: tuple[int, ...], among: Iterable[int], count: int) -> CoresBusy | None:
        if all(self._owners[core] is None for core in among):
            return None
        return self._refuse(requested, among, count)

    def _refuse(self, requested: tuple[int, ...], among: Iterable[int], count: int) -> CoresBusy:
        owners = [self._owners[core] for core in among]
        holders = tuple(self.processes[key] for key in dict.fromkeys(owners) if key is not None)
        return CoresBusy(requested, count, owners.count(None), holders)

    def _adopt(self, process: Process) -> tuple[Effect, ...]:
        if process.key in self.processes:
            return (Refused(Invalid(f"process {process.key.pid} is already registered")),)
        chosen = self._adoptable(process.cores) if process.uses_device else process.cores
        if not isinstance(chosen, tuple):
            return (Refused(chosen),)
        reserved = [0] * self.layout.device_count
        for core, nbytes in process.reserved:
            if core not in chosen or nbytes <= 0:
                return (Refused(Invalid(f"process {process.key.pid} reserves memory on core {core}")),)
            reserved[self.layout.device_of(core)] += nbytes
        for device, needed in enumerate(reserved):
            full = self._overflow(device, needed)
            if needed and full:
                return (Refused(full),)
        return self._join(process)

    def _join(self, process: Process) -> tuple[Effect, ...]:
        self.processes[process.key] = process
        for core in process.cores:
            self._owners[core] = process.key
        for core, nbytes in process.reserved:
            self._used_bytes[self.layout.device_of(core)] += nbytes
        return (Joined(process),)

    def _leave(self, event: Leave) -> tuple[Effect, ...]:
        process = self.processes.pop(event.key, None)
        if process is None:
            return ()
        for core in process.cores:
            self._owners[core] = None
        for core, nbytes in process.reserved:
            self._used_bytes[self.layout.device_of(core)] -= nbytes
        for name, amount in event.totals:
            self._count(name, amount)
        for totals in event.core_totals:
            before = self.core_totals.get(totals.core)
            self.core_totals[totals.core] = before.plus(totals) if before else totals
        self.faults.release(event.key.pid)
        return (Left(process),)

    def _reserve(self, event: Reserve) -> tuple[Effect, ...]:
        process = self.processes.get(event.key)
        if process is None:
            return (Refused(Invalid(f"process {event.key.pid} is not registered")),)
        if event.core not in process.cores:
            return (Refused(Invalid(f"process {event.key.pid} does not hold core {event.core}")),)
        if event.total_bytes < 0:
            return (Refused(Invalid(f"invalid size {event.total_bytes}: must be at least 0 bytes")),)
        device = self.layout.device_of(event.core)
        growth = event.total_bytes - process.reserved_on(event.core)
        if growth > 0 and (full := self._overflow(device, growth)):
            self._count(ALLOCATIONS_REFUSED)
            return (Refused(full),)
        amounts = {**dict(process.reserved), event.core: event.total_bytes}
        reserved = tuple(sorted((core, nbytes) for core, nbytes in amounts.items() if nbytes))
        self._used_bytes[device] += growth
        changed = replace(process, reserved=reserved)
        self.processes[process.key] = changed
        return (Changed(changed),)

    def _overflow(self, device: int, needed: int) -> OutOfMemory | None:
        used = self._used_bytes[device]
        total = self.layout.memory_bytes
        return OutOfMemory(device, total, used, needed) if used + needed > total else None

    def _reset_device(self, event: ResetDevice) -> tuple[Effect, ...]:
        if event.device not in range(self.layout.device_count):
            return (Refused(no_device(event.device, self.layout.device_count)),)
        cores = self.layout.cores_of(event.device)
        if lost := self._lost_device(cores):
            return (Refused(lost),)
        if (owners := self._refuse((), cores, 0).owners) and not event.force:
            return (Refused(DeviceBusy(event.device, owners)),)
        self.faults.reset(cores)
        return (DeviceChanged(event.device),)

    def _count(self, name: str, amount: int = 1) -> None:
        self.lifetime[name] = self.lifetime.get(name, 0) + amount
