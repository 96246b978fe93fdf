"""What the machine does about faults: events in, effects out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.events import (
    ClearFaults,
    DeviceChanged,
    Effect,
    FaultEvent,
    FaultInjected,
    FaultsCleared,
    FaultTaken,
    InjectFault,
    Invalid,
    KernelLine,
    Layout,
    Refused,
    ReleaseFault,
    TakeFault,
    Tick,
)
from neurontools.machine.faults.book import FaultBook, FaultRecord
from neurontools.machine.faults.checks import why_not
from neurontools.machine.faults.kinds import ECC, KINDS, FaultKind

if TYPE_CHECKING:
    from neurontools.machine.error_counters import ErrorCounters
    from neurontools.machine.faults.spec import Hit, MemoryErrors

MAX_FAULTS = 1000


class FaultRules:
    """Answers the events about faults; memory errors go to the machine's counters.

    Args:
        layout: the machine's resources.
        errors: its error counters.
        record: the faults that it has already.
    """

    def __init__(self, layout: Layout, errors: ErrorCounters, record: FaultRecord | None = None) -> None:
        self._layout = layout
        self._errors = errors
        self.book = FaultBook(layout, record or FaultRecord())

    def handle(self, event: FaultEvent, now_ns: int) -> tuple[Effect, ...]:
        """Apply an event; the effect that answers it comes first."""
        match event:
            case InjectFault():
                return self._inject(event, now_ns)
            case ClearFaults():
                return self._clear(event, now_ns)
            case TakeFault():
                due = self._due(now_ns)
                hit = self.book.take(event.victim)
                return (FaultTaken(hit), *due, *_said_of(hit, self._layout, event.victim.nbytes))
            case ReleaseFault():
                self.book.release(event.pid, event.core)
                return (FaultTaken(None), *self._due(now_ns))
            case Tick():
                return self._due(now_ns)

    def _inject(self, event: InjectFault, now_ns: int) -> tuple[Effect, ...]:
        reason = why_not(event.spec, self._layout)
        if len(self.book.faults()) >= MAX_FAULTS:
            reason = f"this machine has {MAX_FAULTS} faults already"
        if reason:
            return (Refused(Invalid(reason)),)
        number = self.book.inject(event.spec, now_ns)
        due = self._due(now_ns)
        fault = self.book.find(number)
        assert fault is not None
        return (FaultInjected(fault), *due, *self._devices())

    def _clear(self, event: ClearFaults, now_ns: int) -> tuple[Effect, ...]:
        known = {fault.id for fault in self.book.faults()}
        unknown = sorted(set(event.ids or ()) - known)
        if unknown:
            have = ", ".join(map(str, sorted(known))) or "no faults"
            return (Refused(Invalid(f"there is no fault {unknown[0]}, this machine has {have}")),)
        due = self._due(now_ns)
        return (FaultsCleared(self.book.clear(event.ids)), *due, *self._devices())

    def _due(self, now_ns: int) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        for errors in self.book.tick(now_ns):
            self._errors.count(errors.device, ECC[errors.ecc].counter, errors.amount)
            effects.append(DeviceChanged(errors.device))
            effects += _said_of_memory(errors)
        return tuple(effects)

    def _devices(self) -> tuple[Effect, ...]:
        return tuple(DeviceChanged(device) for device in range(self._layout.device_count))


def _said_of_memory(errors: MemoryErrors) -> tuple[KernelLine, ...]:
    word = ECC[errors.ecc].kernel_word
    if not word:
        return ()
    return (
        KernelLine(f"neuron:nd{errors.device}: NEURON_HW_ERR={word} {errors.ecc} errors: {errors.amount}"),
    )


def _said_of(hit: Hit | None, layout: Layout, nbytes: int) -> tuple[KernelLine, ...]:
    if hit is None:
        return ()
    if hit.kind is FaultKind.OOM:
        pool = f"device mempool [{hit.device}:0] total {layout.memory_bytes} occupied {layout.memory_bytes}"
        return (KernelLine(f"neuron:mc_alloc: {pool} needed {nbytes} available 0"),)
    word = KINDS[hit.kind].kernel_word
    if not word:
        return ()
    return (KernelLine(f"neuron:nd{hit.device}:nc{hit.nc}: NEURON_HW_ERR={word} status: {hit.status}"),)
