"""The changes between two snapshots of one machine: computed, applied, and their form as JSON.

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

import msgspec
from msgspec import UNSET, Struct, UnsetType

from neurontools.machine.protocol import CHANGES, BrokenConnectionError
from neurontools.machine.snapshot import CoreUse, DeviceState, ModelState, ProcessState, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.protocol import Notification

_CORES, _MODELS, _LATENCY = "cores", "models", "latency_counts"
_OWN_FIELDS = tuple(name for name in Snapshot.__struct_fields__ if name not in {"devices", "processes"})
_PROCESS_FIELDS = tuple(
    name
    for name in ProcessState.__struct_fields__
    if name not in {"pid", "start_ticks", _CORES, _MODELS, _LATENCY}
)


def _partial(whole: type[Struct]) -> Any:
    """Return a struct type with the fields of another one, all of them optional."""
    known = msgspec.structs.fields(whole)
    return msgspec.defstruct(
        f"Partial{whole.__name__}",
        [(field.name, field.type | UnsetType, UNSET) for field in known],
        frozen=True,
    )


if TYPE_CHECKING:
    _PartialProcess = Any
    _PartialSnapshot = Any
    _NOTHING: tuple[Any, ...]
else:
    _PartialProcess, _PartialSnapshot = _partial(ProcessState), _partial(Snapshot)
    _NOTHING = (_PartialProcess(), _PartialSnapshot())


class ProcessChanges(Struct, frozen=True, array_like=True):
    """What changed of one process; see the module for the fields."""

    position: int
    counters: tuple[int, ...]
    running: tuple[int, ...]
    latency: tuple[int, ...]
    cores: tuple[tuple[int, CoreUse], ...]
    fields: _PartialProcess


class Changes(Struct, frozen=True, array_like=True):
    """What changed between two snapshots; see the module for the fields."""

    fields: _PartialSnapshot
    devices: tuple[tuple[int, DeviceState], ...]
    order: tuple[int, ...] | None
    new: tuple[ProcessState, ...]
    moved: tuple[ProcessChanges, ...]


def compute_changes(before: Snapshot, after: Snapshot) -> Changes:
    """Return what changed between two snapshots."""
    fields = _differing(before, after, _OWN_FIELDS)
    devices: tuple[tuple[int, DeviceState], ...] = ()
    if len(before.devices) != len(after.devices):
        fields["devices"] = after.devices
    else:
        devices = tuple(
            [
                (position, new)
                for position, (old, new) in enumerate(zip(before.devices, after.devices, strict=True))
                if old is not new and old != new
            ]
        )
    order = _order(before.processes, after.processes)
    places = range(len(after.processes)) if order is None else order
    moved = []
    for position, (place, new) in enumerate(zip(places, after.processes, strict=True)):
        if place >= 0 and (old := before.processes[place]) is not new:
            change = _process_changes(position, old, new)
            if change is not None:
                moved.append(change)
    arrived = [] if order is None else [after.processes[i] for i, place in enumerate(order) if place < 0]
    return Changes(_PartialSnapshot(**fields), devices, order, tuple(arrived), tuple(moved))


def apply_changes(before: Snapshot, later: Changes) -> Snapshot:
    """Return the later snapshot, from the earlier one and the changes.

    Raises:
        IndexError, StopIteration, ValueError: the changes are those of another snapshot.
    """
    devices = before.devices
    if later.devices:
        listed = list(devices)
        for position, device in later.devices:
            listed[position] = device
        devices = tuple(listed)
    processes = before.processes
    if later.order is not None:
        new = iter(later.new)
        processes = tuple([before.processes[place] if place >= 0 else next(new) for place in later.order])
    if later.moved:
        states = list(processes)
        for change in later.moved:
            states[change.position] = _apply_process_changes(states[change.position], change)
        processes = tuple(states)
    values = {"devices": devices, "processes": processes, **_set_fields(later.fields)}
    return msgspec.structs.replace(before, **values)


def apply_notification(before: Snapshot | None, notification: Notification) -> Snapshot:
    """Return the snapshot that a notification brings.

    Args:
        before: the snapshot of the previous notification on the connection, None for the first.
        notification: what the daemon pushed.

    Raises:
        BrokenConnectionError: the notification is not of this version, or does not fit the snapshot.
    """
    if before is None or notification.method != CHANGES:
        return notification.params(Snapshot)
    try:
        return apply_changes(before, notification.params(Changes))
    except (IndexError, StopIteration, ValueError) as error:
        raise BrokenConnectionError("the changes are not those of the last snapshot") from error


def _order(before: Sequence[ProcessState], after: Sequence[ProcessState]) -> tuple[int, ...] | None:
    if len(before) == len(after) and all(
        old is new or (old.pid == new.pid and old.start_ticks == new.start_ticks)
        for old, new in zip(before, after, strict=True)
    ):
        return None
    places = {(process.pid, process.start_ticks): place for place, process in enumerate(before)}
    return tuple([places.get((process.pid, process.start_ticks), -1) for process in after])


def _process_changes(position: int, old: ProcessState, new: ProcessState) -> ProcessChanges | None:
    fields = _differing(old, new, _PROCESS_FIELDS)
    counters: list[int] = []
    cores: list[tuple[int, CoreUse]] = []
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
        return ProcessChanges(
            position, tuple(counters), tuple(running), tuple(latency), tuple(cores), _PartialProcess(**fields)
        )
    return None


def _cores_changes(
    before: Sequence[CoreUse],
    after: Sequence[CoreUse],
    counters: list[int],
    cores: list[tuple[int, CoreUse]],
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
            cores.append((slot, new))


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


def _apply_process_changes(old: ProcessState, change: ProcessChanges) -> ProcessState:
    values: dict[str, Any] = {}
    if change.counters or change.cores:
        values[_CORES] = _apply_core_changes(old.cores, change)
    if change.running:
        models = list(old.models)
        for slot in change.running:
            models[slot] = msgspec.structs.replace(models[slot], running=not models[slot].running)
        values[_MODELS] = tuple(models)
    if change.latency:
        counts = list(old.latency_counts)
        grown = iter(change.latency)
        for bucket, more in zip(grown, grown, strict=True):
            counts[bucket] += more
        values[_LATENCY] = tuple(counts)
    return msgspec.structs.replace(old, **values, **_set_fields(change.fields))


def _apply_core_changes(before: Sequence[CoreUse], change: ProcessChanges) -> tuple[CoreUse, ...]:
    uses = list(before)
    numbers = iter(change.counters)
    for slot, busy_ns, executions, flops, gpsimd_ns, executing in zip(*(numbers,) * 6, strict=True):
        old = uses[slot]
        uses[slot] = CoreUse(
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
    for slot, use in change.cores:
        uses[slot] = use
    return tuple(uses)


def _set_fields(partial: Struct) -> dict[str, Any]:
    if partial in _NOTHING:
        return {}
    return {
        name: value for name in partial.__struct_fields__ if (value := getattr(partial, name)) is not UNSET
    }


def _differing(
    old: Snapshot | ProcessState, new: Snapshot | ProcessState, names: tuple[str, ...]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        old_value, new_value = getattr(old, name), getattr(new, name)
        if old_value is not new_value and old_value != new_value:
            found[name] = new_value
    return found
