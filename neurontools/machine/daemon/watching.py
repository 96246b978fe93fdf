"""Pushes snapshots to clients that asked to watch: one timer and one snapshot per period, however many watch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from neurontools.machine.protocol import SNAPSHOT, push_line

if TYPE_CHECKING:
    from neurontools.machine.daemon.keeper import Keeper
    from neurontools.machine.daemon.server import Connection


class Watching:
    """Who watches how often. Without watchers there is no timer."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._watchers: dict[float, set[Connection]] = {}

    def add(self, connection: Connection, period_s: float) -> None:
        """Push a snapshot to a connection every so many seconds; a former period is forgotten."""
        self.remove(connection)
        if period_s not in self._watchers:
            self._watchers[period_s] = set()
            self._schedule(period_s)
        self._watchers[period_s].add(connection)

    def remove(self, connection: Connection) -> None:
        """Push nothing more to a connection."""
        for watchers in self._watchers.values():
            watchers.discard(connection)

    def push_first(self, connection: Connection) -> None:
        """Push a snapshot now: a new watcher need not wait."""
        connection.send(self._line())

    def _schedule(self, period_s: float) -> None:
        asyncio.get_running_loop().call_later(period_s, self._tick, period_s)

    def _tick(self, period_s: float) -> None:
        watchers = self._watchers[period_s]
        if not watchers:
            del self._watchers[period_s]
            return
        self._schedule(period_s)
        line = self._line()
        for connection in list(watchers):
            connection.send(line)

    def _line(self) -> bytes:
        return push_line(SNAPSHOT, self._keeper.encoded_snapshot())
