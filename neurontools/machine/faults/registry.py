"""The faults and memory errors of a machine: pure rules. Time is passed in, nothing is assumed about the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from neurontools.machine.events import (
    DeviceChanged,
    Effect,
    FaultEvent,
    FaultInjected,
    FaultsCleared,
    FaultTaken,
    KernelLine,
    TakeFault,
    Tick,
)
from neurontools.machine.faults.kinds import ECC, HW_ERROR, KINDS, UNRECOVERABLE, FaultKind, Reach
from neurontools.machine.faults.params import (
    Action,
    Fault,
    FaultSpec,
    Hit,
    MemoryErrors,
    Phase,
    Rejection,
    Victim,
    rejection_reason,
)
from neurontools.machine.machine_names import unknown_index
from neurontools.machine.protocol import InvalidParamsError
from neurontools.machine.requests import ClearFaults, CountHardware, ReleaseFault
from neurontools.machine.snapshot import NO_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neurontools.machine.devices import Layout
    from neurontools.machine.events import HardwareEvent, Process
    from neurontools.machine.snapshot import HardwareCounter, HardwareCounters

MAX_FAULTS = 1000


class FaultRecord(Struct, frozen=True):
    """The faults of a machine as the journal keeps them; `last_id` is the last id that was given."""

    faults: tuple[Fault, ...] = ()
    last_id: int = 0


NO_FAULTS = FaultRecord()


class FaultRegistry:
    """The faults of a machine by id. `tick` must be called before any other change."""

    def __init__(self, layout: Layout, record: FaultRecord) -> None:
        self._layout = layout
        self._faults = {fault.id: fault for fault in record.faults}
        self._last_id = record.last_id
        self._over: Fault | None = None

    def faults(self) -> tuple[Fault, ...]:
        """Return all faults, oldest first."""
        return tuple(self._faults.values())

    def record(self) -> FaultRecord:
        """Return what the journal keeps."""
        return FaultRecord(self.faults(), self._last_id)

    def find(self, number: int) -> Fault | None:
        """Return a fault, also the last that ended; None: there is no such fault."""
        return self._faults.get(number) or (self._over if self._over and self._over.id == number else None)

    def inject(self, spec: FaultSpec, now_ns: int) -> int:
        """Add a valid fault (see `rejection_reason`) and return its id; `tick` arms it."""
        self._last_id += 1
        due_ns = now_ns + round(spec.after_s * 1e9)
        once = spec.kind is FaultKind.ECC and spec.every_s is None and spec.count is None
        clear = replace(
            spec,
            device=spec.device if spec.core is None else self._layout.device_of(spec.core),
            count=1 if once else spec.count,
        )
        self._faults[self._last_id] = Fault(self._last_id, clear, due_ns, next_ns=due_ns)
        return self._last_id

    def clear(self, ids: Iterable[int] | None) -> tuple[int, ...]:
        """Remove faults and what they broke, all of them with None; return the ids of those that existed."""
        numbers = tuple(self._faults if ids is None else ids)
        cleared = tuple(number for number in numbers if number in self._faults)
        for number in cleared:
            del self._faults[number]
        return cleared

    def tick(self, now_ns: int) -> tuple[MemoryErrors, ...]:
        """Arm faults that are due, end those that are over, and return new memory errors."""
        errors: list[MemoryErrors] = []
        for fault in self.faults():
            if fault.phase is Phase.WAITING and fault.due_ns <= now_ns:
                self._keep(replace(fault, phase=Phase.ARMED))
            errors += self._memory_errors(fault.id, now_ns)
            self._end(fault.id, now_ns)
        return tuple(errors)

    def next_ns(self) -> int | None:
        """Return the time of the next change, None for never."""
        times: list[int] = []
        for fault in self._faults.values():
            if fault.phase is Phase.WAITING:
                times.append(fault.due_ns)
            elif fault.phase is not Phase.BROKEN:
                times += [fault.next_ns] if fault.kind is FaultKind.ECC else []
                times += [fault.end_ns] if fault.end_ns is not None else []
        return min(times, default=None)

    def take(self, victim: Victim) -> Hit | None:
        """Return what happens to an execution or allocation, and count it."""
        hit = self._hit_of_broken(victim)
        for fault in self.faults():
            if hit is None and self._fires_on(fault, victim):
                hit = self._hit(fault, victim)
        return hit

    def release(self, pid: int, core: int | None = None) -> None:
        """Forget that executions of a process hang, on one core or on all."""
        for fault in self.faults():
            held = tuple(victim for victim in fault.held if victim[0] != pid or core not in {None, victim[1]})
            if held != fault.held:
                self._keep(replace(fault, held=held))

    def holds(self, number: int, pid: int, core: int) -> bool:
        """Return whether an execution still has to hang."""
        fault = self._faults.get(number)
        return fault is not None and (pid, core) in fault.held

    def reset(self, cores: Iterable[int]) -> None:
        """Repair cores that memory errors broke."""
        repaired = set(cores)
        for fault in self.faults():
            if repaired.intersection(fault.broken_cores):
                left = tuple(core for core in fault.broken_cores if core not in repaired)
                self._keep(replace(fault, broken_cores=left, failing=fault.failing if left else 0))

    def lost_by(self, device: int) -> int | None:
        """Return the id of the fault by which a device is lost."""
        for fault in self._faults.values():
            lost = fault.kind is FaultKind.DEVICE_LOST and fault.phase is Phase.ARMED
            if lost and fault.spec.device == device:
                return fault.id
        return None

    def links_down(self, device: int) -> tuple[int, ...]:
        """Return the devices that a device has no working link to any more, lost neighbours among them."""
        broken_links = [
            (fault.spec.device, fault.spec.to)
            for fault in self._faults.values()
            if fault.kind is FaultKind.LINK_DOWN and fault.phase is Phase.ARMED
        ]
        peers = {
            target if source == device else source
            for source, target in broken_links
            if device in {source, target}
        }
        links = self._layout.links[device] if self._layout.links else ()
        peers |= {peer for peer in links if self.lost_by(peer) is not None}
        return tuple(sorted(peer for peer in peers if peer is not None))

    def unhealthy(self, device: int) -> tuple[str, ...]:
        """Return the broken parts of a device, in the driver's words (AWS Neuron documentation, sysfs user guide)."""
        names = {
            ECC[fault.spec.ecc].component
            for fault in self._faults.values()
            if any(self._layout.device_of(core) == device for core in fault.broken_cores)
        }
        return tuple(sorted(names)) + (("link_intraserver",) if self.links_down(device) else ())

    def health(self, device: int) -> tuple[bool, tuple[int, ...], tuple[str, ...]]:
        """Return whether a device is lost, `links_down` and `unhealthy`."""
        if not self._faults:
            return False, (), ()
        return self.lost_by(device) is not None, self.links_down(device), self.unhealthy(device)

    def armed_for(self, process: Process) -> int:
        """Return how many faults may hit a process now."""
        return sum(self._may_hit(fault, process) for fault in self._faults.values())

    def _keep(self, fault: Fault) -> None:
        """Store a fault in the phase that its facts mean, or forget it when nothing is left of it."""
        if fault.phase is not Phase.WAITING:
            if self._may_hit_more(fault):
                phase = Phase.ARMED
            elif fault.held:
                phase = Phase.HOLDING
            elif fault.broken_cores:
                phase = Phase.BROKEN
            else:
                self._faults.pop(fault.id, None)
                self._over = replace(fault, phase=Phase.OVER)
                return
            fault = replace(fault, phase=phase)
        self._faults[fault.id] = fault

    def _may_hit_more(self, fault: Fault) -> bool:
        if fault.phase is Phase.BROKEN:
            return False
        return fault.left is None or fault.left > 0

    def _memory_errors(self, number: int, now_ns: int) -> tuple[MemoryErrors, ...]:
        fault = self._faults[number]
        spec = fault.spec
        if fault.kind is not FaultKind.ECC or fault.phase is not Phase.ARMED or fault.next_ns > now_ns:
            return ()
        assert spec.device is not None
        last_ns = now_ns if fault.end_ns is None else min(now_ns, fault.end_ns)
        if spec.every_s is None:
            step_ns, events = 0, fault.left or 0
        else:
            step_ns = round(spec.every_s * 1e9)
            events = max(0, (last_ns - fault.next_ns) // step_ns + 1)
            events = events if fault.left is None else min(events, fault.left)
        breaks = ECC[spec.ecc].breaks and events
        done = replace(
            fault,
            hits=fault.hits + events,
            next_ns=fault.next_ns + events * step_ns,
            failing=fault.failing + events if breaks else 0,
            broken_cores=self._cores(spec) if breaks else fault.broken_cores,
            phase=Phase.BROKEN if spec.every_s is None else fault.phase,
        )
        self._keep(done)
        return (MemoryErrors(spec.device, spec.ecc, events * spec.amount),) if events else ()

    def _cores(self, spec: FaultSpec) -> tuple[int, ...]:
        if spec.core is not None:
            return (spec.core,)
        assert spec.device is not None
        return tuple(self._layout.cores_of(spec.device))

    def _end(self, number: int, now_ns: int) -> None:
        fault = self._faults.get(number)
        if fault is None or fault.end_ns is None or fault.end_ns > now_ns or fault.phase is Phase.BROKEN:
            return
        if fault.kind is FaultKind.ECC:
            self._keep(replace(fault, phase=Phase.BROKEN))
        else:
            del self._faults[number]

    def _hit_of_broken(self, victim: Victim) -> Hit | None:
        device = self._layout.device_of(victim.core)
        by = self.lost_by(device)
        if by is not None:
            lost = self._faults[by]
            self._keep(replace(lost, hits=lost.hits + 1))
            status = UNRECOVERABLE if victim.action is Action.EXECUTION else HW_ERROR
            return self._make_hit(lost, victim, status, lasting=True)
        if victim.action is not Action.EXECUTION:
            return None
        for fault in self.faults():
            if victim.core in fault.broken_cores:
                status = ECC[fault.spec.ecc].status if fault.failing else UNRECOVERABLE
                self._keep(replace(fault, failing=max(0, fault.failing - 1)))
                return self._make_hit(fault, victim, status, lasting=not fault.failing)
        return None

    def _fires_on(self, fault: Fault, victim: Victim) -> bool:
        if fault.phase is not Phase.ARMED or not self._targets(fault, victim):
            return False
        if fault.passed < fault.spec.after_executions:
            self._keep(replace(fault, passed=fault.passed + 1))
            return False
        return True

    def _targets(self, fault: Fault, victim: Victim) -> bool:
        spec = fault.spec
        reach = KINDS[fault.kind].reach
        if reach is Reach.LINK:
            return victim.action is Action.EXECUTION and self._uses_link(spec, victim)
        if reach is not (Reach.EXECUTION if victim.action is Action.EXECUTION else Reach.ALLOCATION):
            return False
        return (
            spec.core in {None, victim.core}
            and spec.device in {None, self._layout.device_of(victim.core)}
            and spec.pid in {None, victim.pid}
            and spec.tag in {None, victim.tag}
        )

    def _uses_link(self, spec: FaultSpec, victim: Victim) -> bool:
        ends = {spec.device, spec.to}
        if victim.collective:
            return self._layout.device_of(victim.core) in ends
        return ends <= {self._layout.device_of(core) for core in victim.peers}

    def _hit(self, fault: Fault, victim: Victim) -> Hit:
        held = fault.held
        if fault.kind is FaultKind.HANG:
            held = (
                *(holder for holder in held if holder != (victim.pid, victim.core)),
                (victim.pid, victim.core),
            )
        self._keep(replace(fault, hits=fault.hits + 1, held=held))
        lasting = fault.left is None and fault.kind is not FaultKind.HANG
        return self._make_hit(fault, victim, KINDS[fault.kind].status, lasting=lasting)

    def _make_hit(self, fault: Fault, victim: Victim, status: int, *, lasting: bool) -> Hit:
        spec = fault.spec
        device = self._layout.device_of(victim.core)
        peer = None if spec.to is None else (spec.device if device == spec.to else spec.to)
        nc = victim.core % self._layout.cores_per_device
        return Hit(fault.id, fault.kind, status, device, nc, spec.factor, peer, lasting)

    def _may_hit(self, fault: Fault, process: Process) -> bool:
        if fault.broken_cores:
            return not set(fault.broken_cores).isdisjoint(process.cores)
        if fault.phase is Phase.HOLDING:
            return any(pid == process.key.pid for pid, _ in fault.held)
        if fault.phase is not Phase.ARMED or fault.kind is FaultKind.ECC:
            return False
        spec = fault.spec
        if spec.pid not in {None, process.key.pid} or spec.tag not in {None, process.tag}:
            return False
        if spec.core is not None:
            return spec.core in process.cores
        devices = {spec.device, spec.to} - {None}
        return not devices or any(self._layout.device_of(core) in devices for core in process.cores)


class ErrorCounters:
    """Counts memory errors by device.

    Args:
        device_count: the machine's devices.
        past: what was counted so far.
    """

    def __init__(self, device_count: int, past: Mapping[int, HardwareCounters]) -> None:
        self.devices = [past.get(device, NO_ERRORS) for device in range(device_count)]

    def handle(self, event: HardwareEvent) -> tuple[Effect, ...]:
        """Count errors, or set counters to zero."""
        check_device(event.device, len(self.devices))
        if isinstance(event, CountHardware):
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


def check_device(device: int, device_count: int) -> None:
    """Check that the machine has a device.

    Raises:
        InvalidParamsError: it has not.
    """
    if not 0 <= device < device_count:
        raise InvalidParamsError(*unknown_index("device", device, range(device_count)))


class FaultRules:
    """Answers the events about faults; memory errors go to the machine's counters.

    Args:
        layout: the machine's resources.
        errors: its error counters.
        record: its faults so far.
    """

    def __init__(self, layout: Layout, errors: ErrorCounters, record: FaultRecord | None = None) -> None:
        self._layout = layout
        self._errors = errors
        self.registry = FaultRegistry(layout, record or FaultRecord())

    def handle(self, event: FaultEvent, now_ns: int) -> tuple[Effect, ...]:
        """Apply an event; the effect that answers it comes first."""
        match event:
            case FaultSpec():
                return self._inject(event, now_ns)
            case ClearFaults():
                return self._clear(event, now_ns)
            case TakeFault():
                due = self._tick(now_ns)
                hit = self.registry.take(event.victim)
                return (FaultTaken(hit), *due, *_hit_lines(hit, self._layout, event.victim.nbytes))
            case ReleaseFault():
                self.registry.release(event.pid or 0, event.core)
                return (FaultTaken(None), *self._tick(now_ns))
            case Tick():
                return self._tick(now_ns)

    def _inject(self, spec: FaultSpec, now_ns: int) -> tuple[Effect, ...]:
        rejection = rejection_reason(spec, self._layout)
        if len(self.registry.faults()) >= MAX_FAULTS:
            rejection = Rejection(
                f"this machine already has {MAX_FAULTS} faults", "remove some: neurontools fault clear ID"
            )
        if rejection:
            raise InvalidParamsError(*rejection)
        fault_id = self.registry.inject(spec, now_ns)
        due = self._tick(now_ns)
        fault = self.registry.find(fault_id)
        assert fault is not None
        return (FaultInjected(fault), *due, *self._devices())

    def _clear(self, event: ClearFaults, now_ns: int) -> tuple[Effect, ...]:
        known = {fault.id for fault in self.registry.faults()}
        unknown = sorted(set(event.ids or ()) - known)
        if unknown:
            listed = ", ".join(map(str, sorted(known))) or "none"
            raise InvalidParamsError(f"no fault {unknown[0]}", f"the faults of this machine: {listed}")
        due = self._tick(now_ns)
        return (FaultsCleared(self.registry.clear(event.ids)), *due, *self._devices())

    def _tick(self, now_ns: int) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        for errors in self.registry.tick(now_ns):
            self._errors.count(errors.device, ECC[errors.ecc].counter, errors.amount)
            effects.append(DeviceChanged(errors.device))
            effects += _memory_error_lines(errors)
        return tuple(effects)

    def _devices(self) -> tuple[Effect, ...]:
        return tuple(DeviceChanged(device) for device in range(self._layout.device_count))


def _memory_error_lines(errors: MemoryErrors) -> tuple[KernelLine, ...]:
    word = ECC[errors.ecc].kernel_word
    if not word:
        return ()
    return (
        KernelLine(f"neuron:nd{errors.device}: NEURON_HW_ERR={word} {errors.ecc} errors: {errors.amount}"),
    )


def _hit_lines(hit: Hit | None, layout: Layout, nbytes: int) -> tuple[KernelLine, ...]:
    if hit is None:
        return ()
    if hit.kind is FaultKind.OOM:
        pool = f"device mempool [{hit.device}:0] total {layout.memory_bytes} occupied {layout.memory_bytes}"
        return (KernelLine(f"neuron:mc_alloc: {pool} needed {nbytes} available 0"),)
    word = KINDS[hit.kind].kernel_word
    if not word:
        return ()
    return (KernelLine(f"neuron:nd{hit.device}:nc{hit.nc}: NEURON_HW_ERR={word} status: {hit.status}"),)
