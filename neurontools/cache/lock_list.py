"""The locks of a root: who holds them, who waits, which are stale."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, table
from neurontools.base.units import format_age
from neurontools.cache import layouts
from neurontools.cache.layouts import display_path
from neurontools.cache.location import is_remote
from neurontools.cache.lock_owner import Liveness, list_waiters
from neurontools.cache.pruning.policy import STALE_LOCK_S
from neurontools.cache.walk import LOCAL, CacheTree, EntryRef

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.cache.lock_owner import LockOwner
    from neurontools.cache.locks import LockState


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock and the processes that wait for it."""

    lock: LockState
    waiters: tuple[LockOwner, ...]


def list_locks(places: Sequence[EntryRef], tree: CacheTree = LOCAL) -> tuple[HeldLock, ...]:
    """Return the locks of entries, oldest first; an entry may have several, even if it is finished.

    Args:
        places: the entries.
        tree: reads their root.
    """
    found = [
        HeldLock(state, () if is_remote(place.path) else list_waiters(place.path))
        for place in places
        for path in _lock_files(tree, place.path)
        if (state := tree.examine_lock(path)) is not None
    ]
    return tuple(sorted(found, key=lambda held: (-held.lock.age_s, held.lock.path)))


def stale_locks(locks: Sequence[HeldLock], age_s: float) -> tuple[LockState, ...]:
    """Return the stale locks, for `break_locks`."""
    return tuple(held.lock for held in locks if held.lock.is_stale(age_s))


def format_broken_locks(found: Sequence[HeldLock], broken: Sequence[LockState], *, dry_run: bool) -> str:
    """Return a summary of removed (or removable) locks, and of those held by living processes."""
    living = sum(held.lock.liveness is Liveness.ALIVE for held in found)
    kept = f"; {living} held by {'a living process' if living == 1 else 'living processes'}" if living else ""
    return f"{len(broken)} of {len(found)} locks {'to remove' if dry_run else 'removed'}{kept}"


def format_locks(root: str, locks: Sequence[HeldLock], width: int | None = None) -> str:
    """Return the table of locks, and a hint if some are stale."""
    rows = [
        (
            _state(held),
            format_age(held.lock.held_s),
            format_age(held.lock.age_s),
            "-" if held.lock.owner is None else str(held.lock.owner.pid),
            "-" if held.lock.owner is None else held.lock.owner.host,
            " ".join(_waiter(held, waiter) for waiter in held.waiters) or "-",
            _shown_path(held.lock.path, root, width),
        )
        for held in locks
    ]
    head = ("STATE", "AGE", "BEAT", "PID", "HOST", "WAITING", "LOCK")
    lines = [table(head, rows, "<>>><<<", width=width, optional=(2, 5, 4, 3))] if rows else []
    lines.append(f"{plural(len(rows), 'lock', 'locks')} in {root}")
    stale = sum(held.lock.is_stale(STALE_LOCK_S) for held in locks)
    if stale:
        lines[-1] += f", {stale} of them stale: 'neuron-cache prune --locks' removes these"
    return "\n".join(lines)


def _shown_path(path: str, root: str, width: int | None) -> str:
    # A terminal shows the entry's path: nearly all lock files have the same name.
    return path if width is None else os.path.dirname(display_path(path, root, width))


def locks_json(root: str, locks: Sequence[HeldLock]) -> dict[str, Any]:
    """Return the JSON form of `format_locks`."""
    return {"root": root, "locks": [_lock_json(held) for held in locks]}


def _lock_json(held: HeldLock) -> dict[str, Any]:
    owner = held.lock.owner
    return {
        "path": held.lock.path,
        "state": held.lock.liveness.value,
        "stale": held.lock.is_stale(STALE_LOCK_S),
        "age_s": held.lock.held_s,
        "beat_age_s": held.lock.age_s,
        "pid": None if owner is None else owner.pid,
        "host": None if owner is None else owner.host,
        "started_unix_s": None if owner is None else owner.started_unix_s,
        "waiting": [{"pid": waiter.pid, "host": waiter.host} for waiter in held.waiters],
    }


def _state(held: HeldLock) -> str:
    if held.lock.liveness is Liveness.UNKNOWN:
        return "unknown, old" if held.lock.is_stale(STALE_LOCK_S) else "unknown"
    return held.lock.liveness.value


def _waiter(held: HeldLock, waiter: LockOwner) -> str:
    host = held.lock.owner.host if held.lock.owner is not None else os.uname().nodename
    return str(waiter.pid) if waiter.host == host else f"{waiter.pid}@{waiter.host}"


def _lock_files(tree: CacheTree, entry: str) -> Iterator[str]:
    try:
        with tree.scandir(entry) as items:
            names = sorted(item.name for item in items)
    except OSError:
        return
    for name in names:
        if name.endswith(layouts.LOCK_SUFFIX):
            yield f"{entry}/{name}"
