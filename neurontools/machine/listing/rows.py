"""The processes of each device in neuron-ls: selection, order and shortened command lines."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.listing.flags import Flags
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

_COMMAND_WIDTH = 40
_WIDE_COMMAND_WIDTH = 80
NO_RUNTIME = "NA"

ProcessRow = tuple[int, str, str]


def rows_of_devices(
    snapshot: Snapshot, devices: list[DeviceState], *, show_all: bool, width: int | None
) -> list[list[ProcessRow]]:
    """Return for each device (pid, command, runtime version) of every process on it, by pid.

    A process on several devices has one row object, so a caller can cache what it makes of it.

    Args:
        snapshot: the machine.
        devices: those of its devices that are listed.
        show_all: also list processes without a Neuron runtime, with "NA" as the version, on every device.
        width: characters that commands are cut to, None to leave them whole.
    """
    places: dict[int, list[int]] = {}
    for place, device in enumerate(devices):
        for core in device.core_ids:
            places.setdefault(core, []).append(place)
    users: list[list[ProcessRow]] = [[] for _ in devices]
    observers: list[ProcessRow] = []
    for process in snapshot.processes:
        if process.uses_device:
            row = _row(process, process.runtime_version, width)
            for place in {place for use in process.cores for place in places.get(use.core, ())}:
                users[place].append(row)
        elif show_all:
            observers.append(_row(process, NO_RUNTIME, width))
    observers.sort()
    return [sorted(observers + own) if own else observers for own in users]


def command_width(flags: Flags) -> int:
    """Return the characters that commands are cut to: 40, or 80 with `--wide`."""
    return _WIDE_COMMAND_WIDTH if flags.wide else _COMMAND_WIDTH


def cut(command: str, width: int) -> str:
    """Return a command of at most `width` characters, the last three of them dots if it was longer."""
    return command if len(command) <= width else command[: width - 3] + "..."


def _row(process: ProcessState, version: str, width: int | None) -> ProcessRow:
    return process.pid, process.command if width is None else cut(process.command, width), version
