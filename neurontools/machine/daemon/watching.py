"""Pushes snapshots to clients that asked to watch: one timer and one snapshot per period, however many watch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from neurontools.machine.changes import changes
from neurontools.machine.codec import encode
from neurontools.machine.protocol import CHANGES, SNAPSHOT, push_line

if TYPE_CHECKING:
    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.service import MachineService
    from neurontools.machine.snapshot import Snapshot


class Watching:
    """The watchers and their periods. Without watchers there is no timer."""

    def __init__(self, service: MachineService) -> None:
        self._service = service
        self._whole: dict[float, set[Connection]] = {}
        # With what was pushed last: a connection gets everything in order or is dropped.
        self._changes: dict[float, dict[Connection, Snapshot | None]] = {}
        self._timers: set[float] = set()

    def add(self, connection: Connection, period_s: float, *, changes: bool = False) -> None:
        """Push a snapshot to a connection every `period_s` seconds; a former period is forgotten.

        Args:
            connection: whose.
            period_s: seconds between two.
            changes: push only the first one whole, then what changed.
        """
        self.remove(connection)
        if changes:
            self._changes.setdefault(period_s, {})[connection] = None
        else:
            self._whole.setdefault(period_s, set()).add(connection)
        if period_s not in self._timers:
            self._timers.add(period_s)
            self._schedule(period_s)

    def remove(self, connection: Connection) -> None:
        """Push nothing more to a connection."""
        for whole in self._whole.values():
            whole.discard(connection)
        for bases in self._changes.values():
            bases.pop(connection, None)

    def push_first(self, connection: Connection) -> None:
        """Push a snapshot now: a new watcher need not wait."""
        for bases in self._changes.values():
            if connection in bases:
                bases[connection] = snapshot = self._service.snapshot()
                connection.send(push_line(SNAPSHOT, encode(snapshot)))
                return
        connection.send(self._whole_line())

    def _schedule(self, period_s: float) -> None:
        asyncio.get_running_loop().call_later(period_s, self._tick, period_s)

    def _tick(self, period_s: float) -> None:
        whole, bases = self._whole.get(period_s), self._changes.get(period_s)
        if not whole and not bases:
            self._timers.discard(period_s)
            self._whole.pop(period_s, None)
            self._changes.pop(period_s, None)
            return
        self._schedule(period_s)
        if whole:
            line = self._whole_line()
            for connection in list(whole):
                connection.send(line)
        if bases:
            self._push_changes(bases)

    def _push_changes(self, bases: dict[Connection, Snapshot | None]) -> None:
        snapshot = self._service.snapshot()
        lines: dict[int, bytes] = {}
        for connection, base in list(bases.items()):
            if base is None:
                continue
            line = lines.get(id(base))
            if line is None:
                line = lines[id(base)] = push_line(CHANGES, encode(changes(base, snapshot)))
            bases[connection] = snapshot
            connection.send(line)

    def _whole_line(self) -> bytes:
        return push_line(SNAPSHOT, self._service.encoded_snapshot())
