"""`neuron-ls --csv`, a form of ours: one line for every process of every device, commands in full."""

from __future__ import annotations

from neurontools.machine.listing.rows import rows_of_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.listing.flags import Flags
    from neurontools.machine.snapshot import DeviceState, Snapshot

_COLUMNS = (
    "instance_type",
    "instance_id",
    "neuron_device",
    "bdf",
    "cpu_affinity",
    "numa_node",
    "connected_to",
    "nc_count",
    "memory_size",
    "neuroncore_ids",
    "pid",
    "command",
    "neuron_runtime_version",
)


def csv_lines(snapshot: Snapshot, devices: list[DeviceState], flags: Flags) -> list[str]:
    """Return the lines: the names of the columns, then a line for each process; an idle device has one line too.

    The columns are named as in the JSON; lists are separated by blanks.
    """
    groups = rows_of_devices(snapshot, devices, show_all=flags.show_all, width=None)
    tails = {row: _line([str(row[0]), *row[1:]]) for row in set().union(*groups)}
    lines = [",".join(_COLUMNS)]
    for device, rows in zip(devices, groups, strict=True):
        head = _line(_head(snapshot, device)) + ","
        lines += [head + tails[row] for row in rows] or [head + _line(["", "", ""])]
    return lines


def _head(snapshot: Snapshot, device: DeviceState) -> list[str]:
    return [
        snapshot.instance_type,
        snapshot.instance_id,
        str(device.index),
        device.bdf,
        device.cpu_affinity,
        device.numa_node,
        " ".join(str(other) for other in device.connected_to or ()),
        str(len(device.core_ids)),
        str(device.memory_bytes),
        " ".join(str(core) for core in device.core_ids),
    ]


def _line(cells: list[str]) -> str:
    return ",".join(map(_quoted, cells))


def _quoted(cell: str) -> str:
    if any(letter in cell for letter in ',"\r\n'):
        return '"' + cell.replace('"', '""') + '"'
    return cell
