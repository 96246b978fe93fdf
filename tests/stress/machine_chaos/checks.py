"""What must be true of the machine whatever happened, checked while every living client is at rest."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.machine.codec import convert
from neurontools.machine.processes import ProcessKey, is_alive
from neurontools.machine.snapshot import Snapshot
from tests.stress.machine_chaos.shared_state import Belief, SharedState, Word

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.client import Client

SETTLED_WITHIN_S = 20.0
Holding = tuple[tuple[int, ...], int]


def wait_until_settled(check: Callable[[], list[str]]) -> list[str]:
    """Return the findings of a check; repeat it while there are any, since deaths are noticed a little later."""
    give_up = time.monotonic() + SETTLED_WITHIN_S
    while (found := check()) and time.monotonic() < give_up:
        time.sleep(0.1)
    return found


def believed_holdings(shared_state: SharedState) -> dict[ProcessKey, Holding]:
    """Return what each living client believes to hold: cores, and bytes of memory."""
    found = {}
    for slot in shared_state.slots:
        key = ProcessKey(slot[Word.PID], slot[Word.START_TICKS])
        if slot[Word.BELIEF] == Belief.REGISTERED and is_alive(key):
            found[key] = tuple(sorted(slot.cores)), sum(map(slot.held_bytes, slot.cores))
    return found


def check_machine(client: Client, shared_state: SharedState, before: dict[str, int]) -> list[str]:
    """Compare the machine with what its clients believe.

    Args:
        client: to ask for a snapshot.
        shared_state: what the clients believe.
        before: the lifetime counters when they were looked at last; brought up to date.
    """
    snapshot = client.snapshot()
    lifetime = dict(snapshot.lifetime)
    wrong = [
        *_claims(snapshot, believed_holdings(shared_state)),
        *_memory(snapshot, shared_state),
        *_counters(lifetime, before, shared_state),
        *_valid(snapshot),
    ]
    if not wrong:
        before.update(lifetime)
    return wrong


def _claims(snapshot: Snapshot, beliefs: dict[ProcessKey, Holding]) -> list[str]:
    shown = {
        ProcessKey(process.pid, process.start_ticks): tuple(sorted(use.core for use in process.cores))
        for process in snapshot.processes
    }
    cores = [core for owned in shown.values() for core in owned]
    wrong = [f"core {core} is shown with two owners" for core in set(cores) if cores.count(core) > 1]
    for key, (owned, _) in beliefs.items():
        if key not in shown:
            wrong.append(f"{key} believes to own {owned}, the machine does not know it")
        elif shown[key] != owned:
            wrong.append(f"{key} believes to own {owned}, the machine says {shown[key]}")
    wrong += [
        f"the machine says that {key} owns {owned}; it is alive: {is_alive(key)}, but does not believe so"
        for key, owned in shown.items()
        if key not in beliefs
    ]
    return wrong


def _memory(snapshot: Snapshot, shared_state: SharedState) -> list[str]:
    per_device = len(snapshot.devices[0].core_ids)
    held = [0] * len(snapshot.devices)
    for slot in shared_state.slots:
        if slot[Word.BELIEF] == Belief.REGISTERED and is_alive(
            ProcessKey(slot[Word.PID], slot[Word.START_TICKS])
        ):
            for core in slot.cores:
                held[core // per_device] += slot.held_bytes(core)
    return [
        f"device {device.index}: {device.memory_used_bytes} bytes in use, the living hold {nbytes}"
        for device, nbytes in zip(snapshot.devices, held, strict=True)
        if device.memory_used_bytes != nbytes
    ]


def _counters(lifetime: dict[str, int], before: dict[str, int], shared_state: SharedState) -> list[str]:
    wrong = [
        f"{name} fell from {count} to {lifetime.get(name, 0)}"
        for name, count in before.items()
        if lifetime.get(name, 0) < count
    ]
    executions = lifetime.get("executions", 0)
    done, begun = shared_state.total(Word.EXECUTIONS_DONE), shared_state.total(Word.EXECUTIONS_BEGUN)
    if not done <= executions <= begun:
        wrong.append(f"{executions} executions counted, {begun} were begun and {done} ended")
    return wrong


def _valid(snapshot: Snapshot) -> list[str]:
    wrong = [] if convert(snapshot.to_json(), Snapshot) == snapshot else ["the snapshot is not its own JSON"]
    wrong += [f"the page of {process.pid} is stale" for process in snapshot.processes if process.stale]
    return wrong


def check_files(
    shared_state: SharedState, machine: str, daemon_pid: int, *, private_pages: bool
) -> list[str]:
    """Compare the files of the machine with its processes: nothing is left of the dead.

    Args:
        shared_state: what the clients believe.
        machine: its name.
        daemon_pid: whose files may be in the making.
        private_pages: whether pages may be missing, because they were made while the disk was full.
    """
    keys = believed_holdings(shared_state)
    wanted = {f"{key.pid}-{key.start_ticks}{end}" for key in keys for end in (".page", ".json")}
    found = set(os.listdir(paths.pages_dir(machine)))
    wrong = [
        f"{name} is missing"
        for name in sorted(wanted - found)
        if not (private_pages and name.endswith(".page"))
    ]
    wrong += [f"{name} is left over" for name in sorted(found - wanted)]
    for place in (paths.machine_dir(machine), f"{paths.state_dir()}/{machine}"):
        wrong += [f"{place}/{name} is left over" for name in os.listdir(place) if _is_aside(name, daemon_pid)]
    return wrong


def _is_aside(name: str, daemon_pid: int) -> bool:
    last = name.rpartition(".")[2]
    return last.isdigit() and len(last) > 1 and int(last) != daemon_pid


def find_tracebacks(log: str) -> list[str]:
    """Return the tracebacks in the daemon's log, each with the line before it and its exception."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    found = []
    for at, line in enumerate(lines):
        if "Traceback" in line:
            end = next((i for i in range(at + 1, len(lines)) if not lines[i].startswith(" ")), len(lines) - 1)
            found.append(" / ".join(part.strip() for part in lines[max(0, at - 1) : end + 1]))
    return found


def descriptors(pid: int) -> list[str]:
    """Return what the descriptors of a process are open on, as the kernel names it."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sorted(found)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
