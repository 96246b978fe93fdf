"""What neuron-ls says about the processes of a device: which ones, in which order, their command line cut to size."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.ls_flags import Flags
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

_COMMAND_WIDTH = 40
_WIDE_COMMAND_WIDTH = 80
NO_RUNTIME = "NA"

ProcessRow = tuple[int, str, str]


def process_rows(
    snapshot: Snapshot, device: DeviceState, *, show_all: bool, width: int | None
) -> list[ProcessRow]:
    """Return (pid, command, runtime version) of every process on a device, by pid.

    Args:
        snapshot: the machine.
        device: one of its devices.
        show_all: also list processes that look at the devices without a Neuron runtime, with "NA" as the version;
            they hold every device.
        width: characters that commands are cut to, None to leave them whole.
    """
    rows = [
        (
            process.pid,
            process.command if width is None else cut(process.command, width),
            process.runtime_version if process.uses_device else NO_RUNTIME,
        )
        for process in snapshot.processes
        if (_uses(process, device) if process.uses_device else show_all)
    ]
    return sorted(rows)


def command_width(flags: Flags) -> int:
    """Return the characters that commands are cut to: 40, or 80 with `--wide`."""
    return _WIDE_COMMAND_WIDTH if flags.wide else _COMMAND_WIDTH


def cut(command: str, width: int) -> str:
    """Return a command of at most `width` characters, the last three of them dots if it was longer."""
    return command if len(command) <= width else command[: width - 3] + "..."


def _uses(process: ProcessState, device: DeviceState) -> bool:
    return any(use.core in device.core_ids for use in process.cores)
