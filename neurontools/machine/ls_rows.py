"""What neuron-ls says about the processes of a device: which ones, in which order, their command line cut to size."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

COMMAND_WIDTH = 40
WIDE_COMMAND_WIDTH = 80
NO_RUNTIME = "NA"

ProcessRow = tuple[int, str, str]


def process_rows(snapshot: Snapshot, device: DeviceState, *, show_all: bool, wide: bool) -> list[ProcessRow]:
    """Return (pid, command, runtime version) of every process on a device, by pid.

    Args:
        snapshot: the machine.
        device: one of its devices.
        show_all: also list processes that look at the devices without a Neuron runtime, with "NA" as the version;
            they hold every device.
        wide: cut commands to 80 characters instead of 40.
    """
    width = WIDE_COMMAND_WIDTH if wide else COMMAND_WIDTH
    rows = [
        (
            process.pid,
            cut(process.command, width),
            process.runtime_version if process.uses_device else NO_RUNTIME,
        )
        for process in snapshot.processes
        if (_uses(process, device) if process.uses_device else show_all)
    ]
    return sorted(rows)


def cut(command: str, width: int) -> str:
    """Return a command of at most `width` characters, the last three of them dots if it was longer."""
    return command if len(command) <= width else command[: width - 3] + "..."


def _uses(process: ProcessState, device: DeviceState) -> bool:
    return any(use.core in device.core_ids for use in process.cores)
