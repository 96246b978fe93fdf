"""The place of an instance in its UltraServer, and what the driver's files say about it (system-tools.md section 4).

The documents show the names of the files and single values (`busy`, `-1`, 16 hexadecimal digits, `1,2,3,4`). Which
instances are pairs, and the made-up ids, are our decision: a user's machines are all instances of one UltraServer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

NONE = "-1"
_FOUR, _PAIRS_ACROSS, _PAIRS_DOWN = 1, 2, 3  # X4, X2H, X2V
_PAIR = 2


@dataclass(frozen=True, slots=True)
class UltraServer:
    """The place of an instance in its UltraServer.

    `node` counts from 0, `modes` are the numbers of the ways in which the instances may be joined. `files` are pairs
    of name and content (without a line end) of the files below `/sys/class/neuron_device`.
    """

    nodes: int
    node: int
    modes: tuple[int, ...]
    files: tuple[tuple[str, str], ...]


def place_in_ultraserver(
    nodes: int, node: int, modes: tuple[int, ...], class_files: tuple[str, ...], owner: str
) -> UltraServer:
    """Return the place of one instance.

    Args:
        nodes: instances of the UltraServer.
        node: which of them this one is, from 0.
        modes: ways in which they may be joined.
        class_files: names of the files.
        owner: who has the UltraServer; its ids are made from it.
    """
    files = tuple((name, _content(name, node, modes, owner)) for name in class_files)
    return UltraServer(nodes, node, modes, files)


def ultraserver_from_json(data: dict[str, Any]) -> UltraServer:
    """Return the value of its JSON form.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    files = tuple((str(name), str(content)) for name, content in data["files"])
    return UltraServer(int(data["nodes"]), int(data["node"]), tuple(map(int, data["modes"])), files)


def _content(name: str, node: int, modes: tuple[int, ...], owner: str) -> str:
    pair = _pair(node, modes)
    match name:
        case "ultraserver_mode":
            return ",".join(map(str, modes))
        case "node_id":
            return str(node)
        case "reservation_id":
            return _made_up_id(f"{owner}\0reservation")
        case "node_id_4":
            return str(node) if _FOUR in modes else NONE
        case "server_id_4":
            return _made_up_id(owner) if _FOUR in modes else NONE
        case "node_id_2":
            return NONE if pair is None else str(pair[1])
        case "server_id_2":
            return NONE if pair is None else _made_up_id(f"{owner}\0{pair[0]}")
    raise ValueError(f"no content is known for {name}")


def _pair(node: int, modes: tuple[int, ...]) -> tuple[int, int] | None:
    """Return which pair an instance belongs to and its place in it; across the rows first if both ways are open."""
    if _PAIRS_ACROSS in modes:
        return node // _PAIR, node % _PAIR
    if _PAIRS_DOWN in modes:
        return node % _PAIR, node // _PAIR
    return None


def _made_up_id(seed: str) -> str:
    return hashlib.sha256(f"ultraserver\0{seed}".encode()).hexdigest()[:16]
