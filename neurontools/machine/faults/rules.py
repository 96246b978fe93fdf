"""The rules of faults: events to effects."""

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
from neurontools.machine.faults.kinds import ECC, KINDS, FaultKind
from neurontools.machine.faults.params import Rejection, rejection_reason
from neurontools.machine.faults.registry import FaultRecord, FaultRegistry

if TYPE_CHECKING:
    from neurontools.machine.faults.params import Hit, MemoryErrors
    from neurontools.machine.history import ErrorCounters

MAX_FAULTS = 1000


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
            case InjectFault():
                return self._inject(event, now_ns)
            case ClearFaults():
                return self._clear(event, now_ns)
            case TakeFault():
                due = self._due(now_ns)
                hit = self.registry.take(event.victim)
                return (FaultTaken(hit), *due, *_hit_lines(hit, self._layout, event.victim.nbytes))
            case ReleaseFault():
                self.registry.release(event.pid, event.core)
                return (FaultTaken(None), *self._due(now_ns))
            case Tick():
                return self._due(now_ns)

    def _inject(self, event: InjectFault, now_ns: int) -> tuple[Effect, ...]:
        rejection = rejection_reason(event.spec, self._layout)
        if len(self.registry.faults()) >= MAX_FAULTS:
            rejection = Rejection(f"this machine already has {MAX_FAULTS} faults", "neurontools fault clear")
        if rejection:
            return (Refused(Invalid(rejection.reason, rejection.remedy)),)
        number = self.registry.inject(event.spec, now_ns)
        due = self._due(now_ns)
        fault = self.registry.find(number)
        assert fault is not None
        return (FaultInjected(fault), *due, *self._devices())

    def _clear(self, event: ClearFaults, now_ns: int) -> tuple[Effect, ...]:
        known = {fault.id for fault in self.registry.faults()}
        unknown = sorted(set(event.ids or ()) - known)
        if unknown:
            listed = ", ".join(map(str, sorted(known))) or "none"
            return (Refused(Invalid(f"no fault {unknown[0]}", f"the faults of this machine: {listed}")),)
        due = self._due(now_ns)
        return (FaultsCleared(self.registry.clear(event.ids)), *due, *self._devices())

    def _due(self, now_ns: int) -> tuple[Effect, ...]:
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
