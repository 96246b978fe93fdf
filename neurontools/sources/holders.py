"""Which processes of a host hold Neuron devices open, from /proc."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.sources.reported import unknown_process
from neurontools.sysfs.tree import NODES

if TYPE_CHECKING:
    from neurontools.machine.snapshot import ProcessState

# The tools hold devices to look at them; they have no Neuron runtime (system-tools.md section 1.1).
_TOOLS = "neuron-"
_LIVE = "live"
_START_FIELD = 19


def device_holders(root: str) -> dict[int, frozenset[int]]:
    """Return the numbers of the device nodes that each process holds open, of those processes that this user may see.

    Args:
        root: the directory that has `proc` and `dev` in it, "" for the host's own.
    """
    node = re.compile(f"(?:{re.escape(root)})?/{NODES}/neuron([0-9]+)")
    holders = {}
    for pid in _pids(root):
        devices = {
            int(match[1]) for match in map(node.fullmatch, _open_files(f"{root}/proc/{pid}/fd")) if match
        }
        if devices:
            holders[pid] = frozenset(devices)
    return holders


def host_process(root: str, pid: int, tag: str = "") -> ProcessState:
    """Return what /proc says about a process, without any work; of one that it does not show, only the pid is known."""
    start_ticks = _start_ticks(root, pid)
    return replace(
        unknown_process(pid, tag, _LIVE),
        start_ticks=start_ticks,
        uid=_uid(root, pid),
        command=_command(root, pid),
        uses_device=not _name(root, pid).startswith(_TOOLS),
        registered_ns=round(start_ticks * 1e9 / os.sysconf("SC_CLK_TCK")),
    )


def boot_unix_s(root: str) -> float:
    """Return when the host was booted, in seconds since 1970; 0 where /proc does not tell."""
    for line in _read(f"{root}/proc/stat").splitlines():
        name, _, value = line.partition(b" ")
        if name == b"btime" and value.strip().isdigit():
            return float(value)
    return 0.0


def _pids(root: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"{root}/proc") if name.isdigit()]
    except OSError:
        return []


def _open_files(directory: str) -> list[str]:
    targets = []
    try:
        for name in os.listdir(directory):
            try:
                targets.append(os.readlink(f"{directory}/{name}"))
            except OSError:
                continue
    except OSError:
        pass
    return targets


def _start_ticks(root: str, pid: int) -> int:
    fields = _read(f"{root}/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[_START_FIELD]) if len(fields) > _START_FIELD and fields[_START_FIELD].isdigit() else 0


def _name(root: str, pid: int) -> str:
    return _read(f"{root}/proc/{pid}/comm").decode("utf-8", "replace").strip()


def _command(root: str, pid: int) -> str:
    words = _read(f"{root}/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
    return b" ".join(words).decode("utf-8", "replace")


def _uid(root: str, pid: int) -> int:
    try:
        return os.stat(f"{root}/proc/{pid}").st_uid
    except OSError:
        return 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
