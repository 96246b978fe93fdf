"""What the filters of neuron-ls leave of a machine.

All filters must hold. With one about processes, devices on which no such process is are not listed. A device is idle,
or busy when processes hold cores of it, and also executing while one of those cores runs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.listing.filters import Filter, Value
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot


def select(
    snapshot: Snapshot, devices: list[DeviceState], filters: tuple[Filter, ...], *, show_all: bool
) -> tuple[tuple[ProcessState, ...], list[DeviceState]]:
    """Return the processes and devices that are left.

    Args:
        snapshot: the machine.
        devices: those of its devices that may be listed.
        filters: what must hold.
        show_all: whether processes without a Neuron runtime count as well; they hold every device.
    """
    of_process = [one for one in filters if one.of_process]
    of_device = [one for one in filters if not one.of_process]
    users = _users(snapshot)
    devices = [
        device
        for device in devices
        if all(one.holds(*_of_device(one.key, device, users[device.index])) for one in of_device)
    ]
    if not of_process:
        return snapshot.processes, devices
    left = tuple(
        process
        for process in snapshot.processes
        if all(one.holds(_of_process(one.key, process)) for one in of_process)
    )
    if show_all and any(not process.uses_device for process in left):
        return left, devices
    places = {use.core for process in left if process.uses_device for use in process.cores}
    return left, [device for device in devices if places.intersection(device.core_ids)]


def _users(snapshot: Snapshot) -> dict[int, list[ProcessState]]:
    place_of = {core: device.index for device in snapshot.devices for core in device.core_ids}
    users: dict[int, list[ProcessState]] = {device.index: [] for device in snapshot.devices}
    for process in snapshot.processes:
        if process.uses_device:
            for index in {place_of[use.core] for use in process.cores if use.core in place_of}:
                users[index].append(process)
    return users


def _of_device(key: str, device: DeviceState, users: list[ProcessState]) -> tuple[Value, ...]:
    match key:
        case "device":
            return (device.index,)
        case "numa":
            return (_integer(device.numa_node),)
        case "bdf":
            return (device.bdf,)
        case "processes":
            return (len(users),)
        case "memory":
            return (device.memory_bytes,)
        case "memory-used":
            return (device.memory_used_bytes,)
        case "memory-free":
            return (device.memory_bytes - device.memory_used_bytes,)
    return _states(device, users)


def _states(device: DeviceState, users: list[ProcessState]) -> tuple[str, ...]:
    if not users:
        return ("idle",)
    own = set(device.core_ids)
    executing = any(use.executing and use.core in own for process in users for use in process.cores)
    return ("busy", "executing") if executing else ("busy",)


def _of_process(key: str, process: ProcessState) -> Value:
    match key:
        case "pid":
            return process.pid
        case "command":
            return process.command
        case "tag":
            return process.tag
        case "owner":
            return process.uid
        case "runtime":
            return process.runtime_version
    return process.origin


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -1
