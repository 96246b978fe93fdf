"""What changed between two snapshots of one machine, as a value that is written as JSON, and back.

    [fields, devices, order, new, moved]

`fields` holds the snapshot's own values that differ, `devices` pairs of position and device, `order` the positions
of the processes in the former snapshot, -1 for the next of `new`; it is null when they are the same as before.
`moved` has a list for each process of both that differs:

    [position, counters, running, latency, cores, fields]

`counters` is flat: of each core its position in the process, what its busy time, executions, FLOPs and GPSIMD time
grew by, and whether it executes; `running` are positions of models that began or ended to run, `latency` is flat:
bucket and growth; `cores` are pairs of position and a whole `CoreUse` where more than counters differs, `fields` other
values of the process that differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.machine.fast_values import fast_constructor
from neurontools.machine.protocol import CHANGES
from neurontools.machine.snapshot import (
    CoreUse,
    ModelState,
    ProcessState,
    Snapshot,
    core_use_from_json,
    device_from_json,
    process_fields_from_json,
    process_from_json,
    snapshot_fields_from_json,
    snapshot_from_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_CORES, _MODELS, _LATENCY = "cores", "models", "latency_counts"
_OWN_FIELDS = tuple(name for name in Snapshot.__slots__ if name not in {"devices", "processes"})
_PROCESS_FIELDS = tuple(
    name for name in ProcessState.__slots__ if name not in {"pid", "start_ticks", _CORES, _MODELS, _LATENCY}
)
_core_use = fast_constructor(CoreUse)
_model_state = fast_constructor(ModelState)
_process_state = fast_constructor(ProcessState)
_snapshot = fast_constructor(Snapshot)


def changes(before: Snapshot, after: Snapshot) -> list[Any]:
    """Return what changed; values in it may be the dataclasses of snapshots."""
    fields = _differing(before, after, _OWN_FIELDS)
    devices: list[list[Any]] = []
    if len(before.devices) != len(after.devices):
        fields["devices"] = after.devices
    else:
        devices = [
            [position, new]
            for position, (old, new) in enumerate(zip(before.devices, after.devices, strict=True))
            if old is not new and old != new
        ]
    order = _order(before.processes, after.processes)
    places = range(len(after.processes)) if order is None else order
    moved = []
    for position, (place, new) in enumerate(zip(places, after.processes, strict=True)):
        if place >= 0 and (old := before.processes[place]) is not new:
            change = _process_changes(position, old, new)
            if change is not None:
                moved.append(change)
    arrived = [] if order is None else [after.processes[i] for i, place in enumerate(order) if place < 0]
    return [fields, devices, order, arrived, moved]


def changed(before: Snapshot, data: list[Any]) -> Snapshot:
    """Return the later snapshot of the former one and what `changes` said, from its JSON form.

    Raises:
        IndexError, KeyError, TypeError, ValueError: the value tells of another snapshot, or of none of this version.
    """
    fields, moved_devices, order, arrived, moved = data
    devices = before.devices
    if moved_devices:
        listed = list(devices)
        for position, device in moved_devices:
            listed[position] = device_from_json(device)
        devices = tuple(listed)
    processes = before.processes
    if order is not None:
        new = iter(arrived)
        processes = tuple(
            [before.processes[place] if place >= 0 else process_from_json(next(new)) for place in order]
        )
    if moved:
        states = list(processes)
        for position, *change in moved:
            states[position] = _process_changed(states[position], *change)
        processes = tuple(states)
    values = {name: getattr(before, name) for name in _OWN_FIELDS}
    values.update(snapshot_fields_from_json(fields), processes=processes)
    values.setdefault("devices", devices)
    return _snapshot(**values)


def pushed(before: Snapshot | None, method: str, params: Any) -> Snapshot:
    """Return the snapshot that a notification brings.

    Args:
        before: that of the notification before on the same connection, None for its first.
        method: the notification's.
        params: its parameters.

    Raises:
        IndexError, KeyError, TypeError, ValueError: the value is none of this version.
    """
    return changed(before, params) if before and method == CHANGES else snapshot_from_json(params)


def _order(before: Sequence[ProcessState], after: Sequence[ProcessState]) -> list[int] | None:
    if len(before) == len(after) and all(
        old is new or (old.pid == new.pid and old.start_ticks == new.start_ticks)
        for old, new in zip(before, after, strict=True)
    ):
        return None
    places = {(process.pid, process.start_ticks): place for place, process in enumerate(before)}
    return [places.get((process.pid, process.start_ticks), -1) for process in after]


def _process_changes(position: int, old: ProcessState, new: ProcessState) -> list[Any] | None:
    fields = _differing(old, new, _PROCESS_FIELDS)
    counters: list[int] = []
    cores: list[list[Any]] = []
    if old.cores is not new.cores:
        if len(old.cores) != len(new.cores):
            fields[_CORES] = new.cores
        else:
            _cores_changes(old.cores, new.cores, counters, cores)
    running: list[int] = []
    if old.models is not new.models and not _only_running(old.models, new.models, running):
        fields[_MODELS] = new.models
        running = []
    latency: list[int] = []
    if old.latency_counts is not new.latency_counts:
        if len(old.latency_counts) != len(new.latency_counts):
            fields[_LATENCY] = new.latency_counts
        else:
            pairs = zip(old.latency_counts, new.latency_counts, strict=True)
            for bucket, (count, now) in enumerate(pairs):
                if count != now:
                    latency += (bucket, now - count)
    if counters or cores or running or latency or fields:
        return [position, counters, running, latency, cores, fields]
    return None


def _cores_changes(
    before: Sequence[CoreUse], after: Sequence[CoreUse], counters: list[int], cores: list[list[Any]]
) -> None:
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is new:
            continue
        if (
            (old.memory is new.memory or old.memory == new.memory)
            and old.core == new.core
            and old.model_loads == new.model_loads
            and old.failures == new.failures
        ):
            growth = (
                new.busy_ns - old.busy_ns,
                new.executions - old.executions,
                new.flops - old.flops,
                new.gpsimd_ns - old.gpsimd_ns,
            )
            if any(growth) or old.executing != new.executing:
                counters += (slot, *growth, 1 if new.executing else 0)
        else:
            cores.append([slot, new])


def _only_running(before: Sequence[ModelState], after: Sequence[ModelState], running: list[int]) -> bool:
    if len(before) != len(after):
        return False
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is new:
            continue
        if (
            old.model_id != new.model_id
            or old.core != new.core
            or old.name != new.name
            or old.uuid != new.uuid
            or (old.memory is not new.memory and old.memory != new.memory)
        ):
            return False
        if old.running != new.running:
            running.append(slot)
    return True


def _process_changed(
    old: ProcessState,
    counters: list[int],
    running: list[int],
    latency: list[int],
    cores: list[list[Any]],
    fields: dict[str, Any],
) -> ProcessState:
    values = {name: getattr(old, name) for name in ProcessState.__slots__}
    if counters or cores:
        values[_CORES] = _cores_changed(old.cores, counters, cores)
    if running:
        models = list(old.models)
        for slot in running:
            was = models[slot]
            models[slot] = _model_state(
                was.model_id, was.name, was.uuid, was.core, not was.running, was.memory
            )
        values[_MODELS] = tuple(models)
    if latency:
        counts = list(old.latency_counts)
        grown = iter(latency)
        for bucket, more in zip(grown, grown, strict=True):
            counts[bucket] += more
        values[_LATENCY] = tuple(counts)
    if fields:
        values.update(process_fields_from_json(fields))
    return _process_state(**values)


def _cores_changed(
    before: Sequence[CoreUse], counters: list[int], cores: list[list[Any]]
) -> tuple[CoreUse, ...]:
    uses = list(before)
    numbers = iter(counters)
    for slot, busy_ns, executions, flops, gpsimd_ns, executing in zip(*(numbers,) * 6, strict=True):
        old = uses[slot]
        uses[slot] = _core_use(
            old.core,
            old.busy_ns + busy_ns,
            old.executions + executions,
            old.flops + flops,
            old.gpsimd_ns + gpsimd_ns,
            executing == 1,
            old.memory,
            old.model_loads,
            old.failures,
        )
    for slot, use in cores:
        uses[slot] = core_use_from_json(use)
    return tuple(uses)


def _differing(
    old: Snapshot | ProcessState, new: Snapshot | ProcessState, names: tuple[str, ...]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        was, now = getattr(old, name), getattr(new, name)
        if was is not now and was != now:
            found[name] = now
    return found
