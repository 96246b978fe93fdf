"""neuron-ls as a pure function from a snapshot to bytes.

The daemon renders with it for the fast path and everything else renders with it too, so that both agree byte for
byte. It imports only its own parts, to load fast.
"""

from __future__ import annotations

from neurontools.base.text import printable
from neurontools.machine.listing.flags import FlagError, Flags, parse, select
from neurontools.machine.listing.formats import (
    BUSY,
    NO_RUNTIME,
    header_lines,
    json_text,
    paint,
    rows_of_devices,
    table_lines,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

Rendered = tuple[int, bytes, bytes]
Asker = tuple[int, int, str]  # pid, uid, command

_LINK = "◄––►"
_WRAP_START = "*––►"
_WRAP_END = "◄––*"
_LEGEND = ["", "Legend:", "", "        *––► = Wrap-around link"]
_HOST_LEGEND = ["", "Legend:", "", "        ◄––►N = Link to device N of the host"]
_TITLE = "Neuron Device Topology"
_CELL = 9
_TORUS_SIDE = 4
_SWITCH = "NeuronLink switch"
_SWITCH_ROW = 8

_Neighbours = list[tuple[int, ...]]

RELEASES = ("2.32", "2.28")

_CSV_COLUMNS = (
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


def topology_lines(snapshot: Snapshot, busy_colour: str = "") -> list[str]:
    """Return the title and the drawing; nothing for a single device, which is connected to none.

    Args:
        snapshot: the machine; a container's devices list neighbours by the host's ids and are drawn as a list.
        busy_colour: colour of the devices that processes hold, "" for none.
    """
    neighbours = [device.connected_to or () for device in snapshot.devices]
    if not any(neighbours):
        return []
    lines = _drawing([device.index for device in snapshot.devices], neighbours)
    if busy_colour:
        for index in _busy(snapshot):
            node = _node(index)
            lines = [line.replace(node, paint(node, busy_colour)) for line in lines]
    return [_TITLE, *lines]


def _busy(snapshot: Snapshot) -> list[int]:
    held = {use.core for process in snapshot.processes if process.uses_device for use in process.cores}
    return [device.index for device in snapshot.devices if held.intersection(device.core_ids)]


def _drawing(devices: list[int], neighbours: _Neighbours) -> list[str]:
    edges = {(device, peer) for device, peers in zip(devices, neighbours, strict=True) for peer in peers}
    count = len(devices)
    if devices == list(range(count)):
        if edges == _path(count):
            return ["", "", "  " + _row(devices) + "  "]
        if edges == _path(count) | {(0, count - 1), (count - 1, 0)}:
            return ["", "", _WRAP_START + _row(devices) + _WRAP_END, *_LEGEND]
        if edges == _torus():
            return [*_torus_lines(), *_LEGEND]
    if edges == {(device, peer) for device in devices for peer in devices if device != peer}:
        return ["", "", *_switch_lines(devices)]
    has_foreign_links = any(peer not in devices for peers in neighbours for peer in peers)
    return ["", "", *_list_lines(devices, neighbours), *(_HOST_LEGEND if has_foreign_links else [])]


def _path(count: int) -> set[tuple[int, int]]:
    forward = {(device, device + 1) for device in range(count - 1)}
    return forward | {(peer, device) for device, peer in forward}


def _torus() -> set[tuple[int, int]]:
    side = _TORUS_SIDE
    edges = set()
    for device in range(side * side):
        row, column = divmod(device, side)
        for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            edges.add((device, (row + down) % side * side + (column + right) % side))
    return edges


def _row(devices: list[int]) -> str:
    return _LINK.join(map(_node, devices))


def _node(device: int) -> str:
    return f"[{device:2d} ]"


def _torus_lines() -> list[str]:
    side = _TORUS_SIDE
    lines = [_marks("*", side, 4), _marks("│", side, 4), _marks("▼", side, 4)]
    for first in range(0, side * side, side):
        lines.append(_WRAP_START + _row(list(range(first, first + side))) + _WRAP_END)
        last = first + side == side * side
        lines += [_marks("▲", side, 4), _marks("│", side, 4), _marks("*" if last else "▼", side, 4)]
    return lines


def _marks(mark: str, count: int, margin: int) -> str:
    return " " * (margin + 2) + (" " * (_CELL - 1)).join([mark] * count) + " " * (margin + 2)


def _switch_lines(devices: list[int]) -> list[str]:
    above = devices if len(devices) <= _SWITCH_ROW else devices[: (len(devices) + 1) // 2]
    below = devices[len(above) :]
    width = _CELL * len(above)
    lines = [_nodes(above), *_links(len(above)), f"[{_SWITCH:^{width - 2}}]"]
    if below:
        lines += [*_links(len(below)), _nodes(below)]
    return lines


def _nodes(devices: list[int]) -> str:
    return "  " + "    ".join(map(_node, devices)) + "  "


def _links(count: int) -> list[str]:
    return [_marks(mark, count, 2) for mark in "▲│▼"]


def _list_lines(devices: list[int], neighbours: _Neighbours) -> list[str]:
    return [
        f"  {_node(device)}{_LINK}" + ", ".join(str(peer) for peer in peers)
        for device, peers in zip(devices, neighbours, strict=True)
        if peers
    ]


def render(snapshot: Snapshot, argv: list[str], emulate: str, *, asker: Asker | None = None) -> Rendered:
    """Return what neuron-ls prints and its exit code.

    Args:
        snapshot: the machine.
        argv: the arguments, without the program's name; colours only with `--color=always`.
        emulate: release of the real tools whose output is reproduced, one of `RELEASES`.
        asker: the neuron-ls process itself, which `--show-all-procs` lists too; pid 0, in another pid namespace, is
            not listed.

    Returns:
        Exit code, standard output, standard error. A wrong flag is exit code 1 with its text on standard output,
        as in the real tool.
    """
    if emulate not in RELEASES:
        return 2, b"", _unknown_release(emulate)
    try:
        flags = parse(argv)
    except FlagError as error:
        return 1, _encoded(f"{error}\n"), b""
    snapshot = _without_lost(snapshot)
    if flags.show_all and asker is not None and asker[0]:
        snapshot = _with_processes(snapshot, (*snapshot.processes, _onlooker(asker)))
    if not snapshot.devices:
        return 1, b"", _encoded(no_devices_line())
    known = {device.index for device in snapshot.devices}
    for device in sorted(flags.devices or ()):
        if device not in known:
            return 1, b"", _no_device(device, snapshot)
    return 0, _encoded(_text(snapshot, flags, emulate)), b""


def _text(snapshot: Snapshot, flags: Flags, emulate: str) -> str:
    chosen = flags.devices
    devices = [device for device in snapshot.devices if chosen is None or device.index in chosen]
    listed = snapshot
    if flags.filters:
        processes, devices = select(snapshot, devices, flags.filters, show_all=flags.show_all)
        listed = _with_processes(snapshot, processes)
    if flags.format == "json":
        return json_text(listed, devices, flags, instance_keys=emulate != "2.28")
    if flags.format == "csv":
        return "\n".join(_csv_lines(listed, devices, flags)) + "\n"
    lines = header_lines(snapshot) + table_lines(listed, devices, flags)
    if flags.topology:
        drawing = topology_lines(snapshot, busy_colour=BUSY if flags.colour == "always" else "")
        lines += ["", "", *drawing] if drawing else []
    return "\n".join(lines) + "\n"


def _with_processes(snapshot: Snapshot, processes: tuple[ProcessState, ...]) -> Snapshot:
    from msgspec.structs import replace

    return replace(snapshot, processes=processes)


def _onlooker(asker: Asker) -> ProcessState:
    from neurontools.machine.snapshot import ProcessState

    pid, uid, command = asker
    return ProcessState(
        pid=pid,
        start_ticks=0,
        uid=uid,
        command=command,
        tag="",
        runtime_version=NO_RUNTIME,
        origin="live",
        uses_device=False,
    )


def _without_lost(snapshot: Snapshot) -> Snapshot:
    if not any(device.lost for device in snapshot.devices):
        return snapshot
    from msgspec.structs import replace

    return replace(snapshot, devices=tuple(device for device in snapshot.devices if not device.lost))


def _no_device(index: int, snapshot: Snapshot) -> bytes:
    from neurontools.machine.machine_names import unknown_index

    message, remedy = unknown_index("device", index, [device.index for device in snapshot.devices])
    return _encoded(f"error: {message}\nhint: {remedy}\n")


def _unknown_release(emulate: str) -> bytes:
    return _encoded(
        f"error: cannot emulate release {emulate!r} of the tools\n"
        f"hint: set NEURONTOOLS_EMULATE to {' or '.join(RELEASES)}\n"
    )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def no_devices_line() -> str:
    """Return the line that the real tool writes to stderr where no device exists, with the current time."""
    import time

    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return (
        f'time="{now}" level=fatal msg="Failed to load MLA system information" '
        'error="failed to discover Neuron devices"\n'
    )


def _csv_lines(snapshot: Snapshot, devices: list[DeviceState], flags: Flags) -> list[str]:
    """Return the lines: the names of the columns, then a line for each process; an idle device has one line too.

    The columns are named as in the JSON; lists are separated by blanks.
    """
    groups = rows_of_devices(snapshot, devices, show_all=flags.show_all, width=None)
    tails = {row: _csv_line([str(row[0]), *row[1:]]) for row in set().union(*groups)}
    lines = [",".join(_CSV_COLUMNS)]
    for device, rows in zip(devices, groups, strict=True):
        head = _csv_line(_csv_device(snapshot, device)) + ","
        lines += [head + tails[row] for row in rows] or [head + _csv_line(["", "", ""])]
    return lines


def _csv_device(snapshot: Snapshot, device: DeviceState) -> list[str]:
    return [
        snapshot.instance_type,
        snapshot.instance_id,
        str(device.index),
        device.bdf,
        device.cpu_affinity,
        device.numa_node,
        " ".join(str(peer) for peer in device.connected_to or ()),
        str(len(device.core_ids)),
        str(device.memory_bytes),
        " ".join(str(core) for core in device.core_ids),
    ]


def _csv_line(cells: list[str]) -> str:
    return ",".join(map(_csv_cell, cells))


def _csv_cell(cell: str) -> str:
    shown = printable(cell)
    return '"' + shown.replace('"', '""') + '"' if "," in shown or '"' in shown else shown
