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
    DeviceChanged,
    Effect,
    Event,
    Joined,
    Leave,
    Left,
    Process,
    Register,
    Reserve,
)
from neurontools.machine.faults.registry import ErrorCounters, FaultRules, check_device
from neurontools.machine.machine_names import core_ranges, format_cores, unknown_index
from neurontools.machine.protocol import (
    CoresBusyError,
    DeviceLostError,
    InvalidParamsError,
    OutOfDeviceMemoryError,
    RefusedError,
)
from neurontools.machine.requests import CountHardware, ResetDevice, ResetHardware
from neurontools.machine.snapshot import History

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.machine.devices import Layout
    from neurontools.machine.faults.registry import FaultRecord
    from neurontools.machine.processes import ProcessKey
    from neurontools.machine.requests import ProcessSpec

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

        Raises:
            RefusedError: the machine does not grant it; nothing changed but a counter.
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
        self._check_new(event.key)
        try:
            cores = self._choose(event.spec)
        except CoresBusyError:
            self._count(CLAIMS_REFUSED)
            raise
        spec = event.spec
        process = Process(
            key=event.key,
            uid=event.uid,
            tag=spec.tag,
            command=spec.command,
            runtime_version=spec.runtime_version,
            uses_device=spec.uses_device,
            cores=cores,
            registered_ns=now_ns,
            player=event.player,
            stack=event.stack,
        )
        if spec.uses_device:
            self._count(PROCESSES)
        if event.reset_cores:
            self.faults.reset(cores)
        return self._join(process)

    def _check_new(self, key: ProcessKey) -> None:
        if key in self.processes:
            raise InvalidParamsError(f"process {key.pid} is already registered")

    def _choose(self, spec: ProcessSpec) -> tuple[int, ...]:
        if not spec.uses_device:
            if spec.cores or spec.count:
                raise InvalidParamsError("a process that does not use the device can't claim cores")
            return ()
        everything = range(self.layout.core_count)
        if spec.cores is not None:
            self._check_ids(spec.cores)
            self._check_present(spec.cores)
            return self._checked_free(spec.cores, spec.cores)
        count = spec.count or ALL_CORES
        if count < 0:
            raise InvalidParamsError(f"invalid number of cores {count}: must be at least 0")
        if count == ALL_CORES:
            self._check_present(everything)
            return self._checked_free((), everything)
        free_run = 0
        for core in everything:
            usable = self._owners[core] is None and self._lost_device((core,)) is None
            free_run = free_run + 1 if usable else 0
            if free_run == count:
                return tuple(range(core + 1 - count, core + 1))
        raise self._cores_busy((), everything, count)

    def _check_ids(self, cores: tuple[int, ...]) -> None:
        count = self.layout.core_count
        if not cores or len(set(cores)) < len(cores):
            raise InvalidParamsError("no cores, or one core twice", "list each core to claim once")
        unknown = [core for core in cores if not 0 <= core < count]
        if unknown:
            raise InvalidParamsError(*unknown_index("core", unknown[0], range(count)))

    def _lost_device(self, cores: Iterable[int]) -> int | None:
        devices = dict.fromkeys(map(self.layout.device_of, cores))
        return next((device for device in devices if self.faults.lost_by(device) is not None), None)

    def _check_present(self, cores: Iterable[int]) -> None:
        device = self._lost_device(cores)
        if device is not None:
            raise DeviceLostError(
                f"Could not open the nd{device}: the device is lost",
                "see 'neurontools fault list'",
                device=device,
            )

    def _checked_free(self, requested: tuple[int, ...], cores: Sequence[int]) -> tuple[int, ...]:
        if any(self._owners[core] is not None for core in cores):
            raise self._cores_busy(requested, cores, len(cores))
        return tuple(cores)

    def _holders(self, cores: Iterable[int]) -> tuple[Process, ...]:
        owners = dict.fromkeys(self._owners[core] for core in cores)
        return tuple(self.processes[key] for key in owners if key is not None)

    def _cores_busy(self, requested: tuple[int, ...], cores: Iterable[int], count: int) -> CoresBusyError:
        available = sum(self._owners[core] is None for core in cores)
        holders = self._holders(cores)
        wanted = f"NeuronCores {core_ranges(requested)}" if requested else f"{count} NeuronCores"
        return CoresBusyError(
            f"requested {wanted}, {available or 'none'} free: {format_holders(holders) or 'too few'}",
            "wait for them, or set NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES to others",
            requested=requested,
            count=count,
            available=available,
            owners=tuple(process.key.pid for process in holders),
        )

    def _adopt(self, process: Process) -> tuple[Effect, ...]:
        self._check_new(process.key)
        if process.uses_device:
            self._check_ids(process.cores)
            self._checked_free(process.cores, process.cores)
        reserved = [0] * self.layout.device_count
        for core, nbytes in process.reserved:
            if core not in process.cores or nbytes <= 0:
                raise InvalidParamsError(f"process {process.key.pid} reserves memory on core {core}")
            reserved[self.layout.device_of(core)] += nbytes
        for device, needed in enumerate(reserved):
            self._check_memory(device, needed)
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
            raise InvalidParamsError(f"process {event.key.pid} is not registered")
        if event.core not in process.cores:
            raise InvalidParamsError(f"process {event.key.pid} does not hold core {event.core}")
        if event.total_bytes < 0:
            raise InvalidParamsError(f"invalid size {event.total_bytes}: must be at least 0 bytes")
        device = self.layout.device_of(event.core)
        growth = event.total_bytes - process.reserved_on(event.core)
        try:
            self._check_memory(device, growth)
        except OutOfDeviceMemoryError:
            self._count(ALLOCATIONS_REFUSED)
            raise
        amounts = {**dict(process.reserved), event.core: event.total_bytes}
        reserved = tuple(sorted((core, nbytes) for core, nbytes in amounts.items() if nbytes))
        self._used_bytes[device] += growth
        changed = replace(process, reserved=reserved)
        self.processes[process.key] = changed
        return (Changed(changed),)

    def _check_memory(self, device: int, growth: int) -> None:
        used, total = self._used_bytes[device], self.layout.memory_bytes
        if growth > 0 and used + growth > total:
            raise OutOfDeviceMemoryError(
                f"memory of device {device} is full: {growth} bytes needed, {total - used} of {total} free",
                device=device,
                total=total,
                used=used,
                needed=growth,
            )

    def _reset_device(self, event: ResetDevice) -> tuple[Effect, ...]:
        check_device(event.device, self.layout.device_count)
        cores = self.layout.cores_of(event.device)
        self._check_present(cores)
        if (holders := self._holders(cores)) and not event.force:
            raise RefusedError(
                f"device {event.device} is in use: {format_holders(holders)}", "end them, or use --force"
            )
        self.faults.reset(cores)
        return (DeviceChanged(event.device),)

    def _count(self, name: str, amount: int = 1) -> None:
        self.lifetime[name] = self.lifetime.get(name, 0) + amount


def format_holders(owners: tuple[Process, ...]) -> str:
    """Return which processes hold which cores, the first three by name."""
    shown = [f"process {owner.key.pid} holds {format_cores(owner.cores)}" for owner in owners[:3]]
    more = [f"{len(owners) - 3} more"] if len(owners) > 3 else []
    return ", ".join(shown + more)
