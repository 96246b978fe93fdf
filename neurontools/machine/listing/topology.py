"""The drawing of `neuron-ls --topology` (AWS Neuron documentation, neuron-ls).

The 4x4 torus and the chain are those of the real tool; ring, switch and other connections are our decision.
"""

from __future__ import annotations

from neurontools.machine.listing.table import paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot

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
