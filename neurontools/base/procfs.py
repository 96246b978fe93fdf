"""What /proc says about processes (Linux manual, proc(5))."""

from __future__ import annotations

import os

_DEAD_STATES = frozenset({b"Z", b"X", b"x"})
_FIRST_LINE_BYTES = 256
# Positions behind the command name, which may hold blanks and brackets of its own.
_STATE, _PARENT, _USER, _SYSTEM, _START, _RESIDENT, _STACK = 0, 1, 11, 12, 19, 21, 25


class ProcessStat:
    """The fields of `/proc/<pid>/stat` that this toolkit uses. Times are clock ticks; `resident_bytes` is memory.

    `stack_start` is the address at which the stack begins, 0 where the kernel hides it.

    A plain class with slots: neuron-ls's path does not load dataclasses.
    """

    __slots__ = (
        "is_dead",
        "parent_pid",
        "resident_bytes",
        "stack_start",
        "start_ticks",
        "system_ticks",
        "user_ticks",
    )

    def __init__(self, fields: list[bytes]) -> None:
        self.is_dead = fields[_STATE] in _DEAD_STATES
        self.parent_pid = int(fields[_PARENT])
        self.user_ticks = int(fields[_USER])
        self.system_ticks = int(fields[_SYSTEM])
        self.start_ticks = int(fields[_START])
        self.resident_bytes = int(fields[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE")
        self.stack_start = int(fields[_STACK]) if len(fields) > _STACK else 0


def read_stat(pid: int, root: str = "") -> ProcessStat | None:
    """Return what the kernel says of a process, None where it is gone or hidden.

    Args:
        pid: the process.
        root: a directory that holds another host's `/proc`.
    """
    try:
        with open(f"{root}/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return ProcessStat(fields)
    except (OSError, ValueError, IndexError):
        return None


def read_cpu_ticks() -> list[int]:
    """Return the clock ticks of all CPUs of this host since boot.

    In the order of the kernel: user, nice, system, idle, iowait, irq, softirq, steal; [] where /proc does not have them.
    """
    try:
        with open("/proc/stat", "rb", buffering=0) as file:
            words = file.read(_FIRST_LINE_BYTES).splitlines()[0].split()
        return list(map(int, words[1:9]))
    except (OSError, ValueError, IndexError):
        return []


def read_start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None where it is gone, hidden or a zombie."""
    stat = read_stat(pid)
    return None if stat is None or stat.is_dead else stat.start_ticks


def read_uid(pid: int) -> int | None:
    """Return the effective uid of a process; None where it is gone or hidden."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    return next((int(line.split()[2]) for line in lines if line.startswith(b"Uid:")), None)


def shows_this_process() -> bool:
    """Return whether /proc is mounted and belongs to the pid namespace of this process."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def read_boot_id() -> str:
    """Return the id of this boot of the host, "" where /proc does not have it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_namespace(kind: str) -> str:
    """Return the id of a namespace of this process, such as its `pid` or `net` one; "" where /proc does not have it."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def read_boot_time(root: str = "") -> float:
    """Return when the host was booted, in seconds since 1970; 0 where /proc does not have it.

    Args:
        root: a directory that holds another host's `/proc`.
    """
    try:
        with open(f"{root}/proc/stat", "rb") as file:
            for line in file:
                name, _, value = line.partition(b" ")
                if name == b"btime" and value.strip().isdigit():
                    return float(value)
    except OSError:
        pass
    return 0.0
