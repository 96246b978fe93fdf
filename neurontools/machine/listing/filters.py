"""`neuron-ls --filter`, which the real tool does not have: its fields, and the devices and processes that it selects.

A filter is a condition (`neurontools.base.filters`) on the device (`state=busy`) or on the process (`tag~train`).
"""

from __future__ import annotations

from neurontools.base.filters import (
    NUMBER,
    OWNER,
    SIZE,
    TEXT,
    WORD,
    FilterCondition,
    FilterError,
    FilterParser,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.base.filters import Value
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

STATES = ("idle", "busy", "executing")
DEVICE_KEYS = {
    "device": NUMBER,
    "numa": NUMBER,
    "bdf": TEXT,
    "state": WORD,
    "processes": NUMBER,
    "memory": SIZE,
    "memory-used": SIZE,
    "memory-free": SIZE,
}
PROCESS_KEYS = {
    "pid": NUMBER,
    "command": TEXT,
    "tag": TEXT,
    "owner": OWNER,
    "runtime": TEXT,
    "origin": TEXT,
}
_PARSER = FilterParser(
    {**DEVICE_KEYS, **PROCESS_KEYS}, {"state": STATES}, "state=busy 'memory-used>1GB' owner=me"
)


def parse_filter(text: str) -> FilterCondition:
    """Return the condition in a text.

    Raises:
        FilterError: the text is invalid, or has line breaks, which cannot be sent to the daemon.
    """
    for letter in "\n\0":
        if letter in text:
            raise FilterError(
                text, text.index(letter), "line break in a filter", "use ~ with a part of the text"
            )
    return _PARSER.parse(text, is_single=True)[0]


def select(
    snapshot: Snapshot, devices: list[DeviceState], filters: tuple[FilterCondition, ...], *, show_all: bool
) -> tuple[tuple[ProcessState, ...], list[DeviceState]]:
    """Return the processes and devices that match all filters.

    With a filter on processes, devices without a matching process are not listed. A device is idle, or busy when
    processes hold cores of it, and also executing while one of those cores runs.

    Args:
        snapshot: the machine.
        devices: the devices to choose from.
        filters: the conditions.
        show_all: whether processes without a Neuron runtime count as well; they hold every device.
    """
    of_process = [condition for condition in filters if condition.field in PROCESS_KEYS]
    of_device = [condition for condition in filters if condition.field in DEVICE_KEYS]
    users = _users(snapshot)
    devices = [
        device
        for device in devices
        if all(
            condition.matches(*_device_values(condition.field, device, users[device.index]))
            for condition in of_device
        )
    ]
    if not of_process:
        return snapshot.processes, devices
    matching = tuple(
        process
        for process in snapshot.processes
        if all(condition.matches(_process_value(condition.field, process)) for condition in of_process)
    )
    if show_all and any(not process.uses_device for process in matching):
        return matching, devices
    places = {use.core for process in matching if process.uses_device for use in process.cores}
    return matching, [device for device in devices if places.intersection(device.core_ids)]


def _users(snapshot: Snapshot) -> dict[int, list[ProcessState]]:
    place_of = {core: device.index for device in snapshot.devices for core in device.core_ids}
    users: dict[int, list[ProcessState]] = {device.index: [] for device in snapshot.devices}
    for process in snapshot.processes:
        if process.uses_device:
            for index in {place_of[use.core] for use in process.cores if use.core in place_of}:
                users[index].append(process)
    return users


def _device_values(key: str, device: DeviceState, users: list[ProcessState]) -> tuple[Value, ...]:
    if key == "state":
        return _states(device, users)
    values: dict[str, Value] = {
        "device": device.index,
        "numa": int(device.numa_node) if device.numa_node.isdecimal() else -1,
        "bdf": device.bdf,
        "processes": len(users),
        "memory": device.memory_bytes,
        "memory-used": device.memory_used_bytes,
        "memory-free": device.memory_bytes - device.memory_used_bytes,
    }
    return (values[key],)


def _states(device: DeviceState, users: list[ProcessState]) -> tuple[str, ...]:
    if not users:
        return ("idle",)
    own = set(device.core_ids)
    executing = any(use.executing and use.core in own for process in users for use in process.cores)
    return ("busy", "executing") if executing else ("busy",)


def _process_value(key: str, process: ProcessState) -> Value:
    values: dict[str, Value] = {
        "pid": process.pid,
        "command": process.command,
        "tag": process.tag,
        "owner": process.uid,
        "runtime": process.runtime_version,
    }
    return values.get(key, process.origin)
