"""What events and alerts mean and what to do about them: our advice, with the commands of this toolkit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neurontools.dashboard.alerts import Condition
from neurontools.dashboard.events import MachineEventKind

if TYPE_CHECKING:
    from neurontools.dashboard.events import MachineEvent


class EventAdvice(NamedTuple):
    """What happened, and steps to take; no steps where nothing needs to be done."""

    meaning: str
    steps: tuple[str, ...] = ()


_NEXT_CHECKPOINT = "Restart the job from its last checkpoint."
_OTHER_CORES = "Start it on other cores: NEURON_RT_VISIBLE_CORES names them."
_SIMULATED = (
    "On a simulated machine, 'neurontools fault list' shows injected faults, 'fault clear' repairs them."
)

_OF_KIND = {
    MachineEventKind.STARTED: EventAdvice("A process registered with the driver and claimed cores."),
    MachineEventKind.ENDED: EventAdvice(
        "The process exited or was killed. Its cores and device memory are free.",
        ("If it should still run, look at its exit code and its log.",),
    ),
    MachineEventKind.FAILED: EventAdvice(
        "Executions of a model ended with this NRT status; the program got an exception.",
        (
            "Look for 'nrt_execute' in the log of the program.",
            "Hardware errors (HW_ERR) of one core that come back: use another device.",
            _SIMULATED,
        ),
    ),
    MachineEventKind.ECC: EventAdvice(
        "Memory of the device had bit errors, which its error correction noticed.",
        ("Corrected errors lose nothing; watch whether they become more (page Devices, F4).", _SIMULATED),
    ),
    MachineEventKind.LOST: EventAdvice(
        "The device is no longer on the bus. Its counters cannot be read, and programs on it fail.",
        (_NEXT_CHECKPOINT, _OTHER_CORES, _SIMULATED),
    ),
    MachineEventKind.FOUND: EventAdvice(
        "The device is back on the bus. Programs that lost it must be started again."
    ),
    MachineEventKind.LINK_DOWN: EventAdvice(
        "The NeuronLink between two devices is down. Collectives of jobs that span it fail or wait.",
        ("See which jobs span it: page Devices (F4), then t.", _OTHER_CORES, _SIMULATED),
    ),
    MachineEventKind.LINK_UP: EventAdvice("The link works again."),
    MachineEventKind.NO_DATA: EventAdvice(
        "The source sends nothing; values on screen are old.",
        (
            "'neurond status' shows whether the daemon runs.",
            "An exporter: look at its host and the network.",
        ),
    ),
    MachineEventKind.DATA: EventAdvice("The source sends data again; the time between is missing in curves."),
}
_UNCORRECTED = EventAdvice(
    "Bit errors of the device's memory could not be corrected: results computed from it may be wrong.",
    (_NEXT_CHECKPOINT, "If it happens again, use another device.", _SIMULATED),
)
_OF_CONDITION = {
    Condition.IDLE_CLAIM: EventAdvice(
        "A process holds cores and hardly uses them; no other process can.",
        (
            "Waiting for data? Compare host CPU (HOST) on page Processes (F3).",
            "A forgotten shell or notebook: end it (K).",
        ),
    ),
    Condition.DEVICE_MEMORY: EventAdvice(
        "The device's memory is nearly full; the next allocation may fail.",
        ("The memory tree on the overview (F1) shows what fills it.", "Smaller batches or more cores help."),
    ),
    Condition.ERROR_RATE: EventAdvice(
        "More executions of a process fail than the threshold allows.",
        _OF_KIND[MachineEventKind.FAILED].steps,
    ),
    Condition.ECC: _UNCORRECTED,
    Condition.STRAGGLER: EventAdvice(
        "One rank is slower than its peers, and a job runs at the speed of its slowest rank.",
        (
            "Compare its cores, memory errors and host CPU with those of its peers (F3, F4).",
            "'neuron-profile view' of that rank shows where its time goes.",
            _SIMULATED,
        ),
    ),
    Condition.LOST_DEVICE: _OF_KIND[MachineEventKind.LOST],
}


def advice_for(event: MachineEvent) -> EventAdvice:
    """Return what an event means and what to do."""
    if event.kind is MachineEventKind.ALERT_OVER:
        return EventAdvice("The condition of the alert no longer holds.")
    if event.kind is MachineEventKind.ALERT:
        name = event.what.partition(":")[0]
        return _OF_CONDITION[Condition(name)]
    if event.kind is MachineEventKind.ECC and event.counter and "uncorrected" in event.counter:
        return _UNCORRECTED
    return _OF_KIND[event.kind]
