"""Who waits for an entry that somebody else compiles: a small file per waiting process, beside the lock."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from neurontools.cache.files import remove_quietly
from neurontools.cache.layout import WAITER_PREFIX
from neurontools.cache.owner import Liveness, Owner, liveness, owner_from_bytes, this_process
from neurontools.cache.reading import read_start

if TYPE_CHECKING:
    from types import TracebackType

_MAX_BYTES = 4096


class Waiter:
    """A mark that this process waits; made by `announce`, removed at the end of the `with` block."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._path = ""

    def announce(self) -> None:
        """Leave the mark; an entry that cannot be written to gets none."""
        if self._path:
            return
        owner = this_process()
        self._path = f"{self._entry}/{WAITER_PREFIX}{owner.pid}-{owner.token}"
        try:
            with open(self._path, "xb") as mark:
                mark.write(owner.to_bytes())
        except OSError:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path:
            remove_quietly(self._path)


def waiters_of(entry: str) -> tuple[Owner, ...]:
    """Return the living processes that wait for an entry; those of other hosts count as living."""
    found = []
    for name in _marks(entry):
        owner = owner_from_bytes(read_start(f"{entry}/{name}", _MAX_BYTES))
        if owner is not None and liveness(owner, 0.0) is not Liveness.DEAD:
            found.append(owner)
    return tuple(sorted(found, key=lambda owner: (owner.host, owner.pid)))


def dead_marks(entry: str) -> tuple[str, ...]:
    """Return the names of marks of processes that were killed while they waited."""
    found = []
    for name in _marks(entry):
        owner = owner_from_bytes(read_start(f"{entry}/{name}", _MAX_BYTES))
        if owner is not None and liveness(owner, 0.0) is Liveness.DEAD:
            found.append(name)
    return tuple(found)


def remove_dead_waiters(entry: str) -> None:
    """Remove the marks of processes that were killed while they waited."""
    for name in dead_marks(entry):
        remove_quietly(f"{entry}/{name}")


def _marks(entry: str) -> list[str]:
    try:
        return [name for name in os.listdir(entry) if name.startswith(WAITER_PREFIX)]
    except OSError:
        return []
