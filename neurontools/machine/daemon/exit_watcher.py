"""Watches for the end of registered processes: exit, exit of the player of a synthetic one, and exec.

A program that replaces itself by another one (exec) keeps its pid and its start time, so its pidfd says nothing. But
exec closes its connection, and the stack of the new program lies elsewhere. Its cores are free then, as a real driver
frees what a closed file held.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.machine.processes import open_pidfd, stack_start

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle
    from collections.abc import Callable

    from neurontools.machine.events import Process
    from neurontools.machine.processes import ProcessKey

_PERIOD_S = 2.0


class ExitWatcher:
    """Watches running processes, each by one pidfd, however many registered ones end with it.

    Args:
        loop: reports when a watched process has exited.
        on_exit: gets the registered processes that end with it.
    """

    def __init__(self, loop: AbstractEventLoop, on_exit: Callable[[tuple[ProcessKey, ...]], None]) -> None:
        self._loop = loop
        self._on_exit = on_exit
        self._pidfds: dict[ProcessKey, int] = {}
        self._registered: dict[ProcessKey, dict[ProcessKey, None]] = {}
        self._hosts: dict[ProcessKey, ProcessKey] = {}

    def watch(self, key: ProcessKey, host: ProcessKey) -> None:
        """Watch a process of the host with which a registered process ends.

        Raises:
            ProcessLookupError: that process has exited.
        """
        if host not in self._pidfds:
            self._pidfds[host] = pidfd = open_pidfd(host)
            self._registered[host] = {}
            self._loop.add_reader(pidfd, self._exited, host)
        self._registered[host][key] = None
        self._hosts[key] = host

    def unwatch(self, key: ProcessKey) -> None:
        """Stop watching for a registered process; ignored when it was not watched."""
        host = self._hosts.pop(key, None)
        if host is None:
            return
        del self._registered[host][key]
        if not self._registered[host]:
            self._drop(host)

    def watched_with(self, host: ProcessKey) -> tuple[ProcessKey, ...]:
        """Return the registered processes that end with a process of the host."""
        return tuple(self._registered.get(host, ()))

    def close(self) -> None:
        """Stop watching."""
        for host in list(self._pidfds):
            self._drop(host)
        self._hosts.clear()

    def _exited(self, host: ProcessKey) -> None:
        self._on_exit(self.watched_with(host))

    def _drop(self, host: ProcessKey) -> None:
        pidfd = self._pidfds.pop(host)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        del self._registered[host]


class ExecDetector:
    """Detects exec in processes that no connection speaks for: checks them at once, then every two seconds.

    Without such processes there is no timer.

    Args:
        loop: runs the timer.
        process_of: the registered process of a key, None when it is not registered (any more).
        on_replaced: gets a process that now runs another program.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        process_of: Callable[[ProcessKey], Process | None],
        on_replaced: Callable[[ProcessKey], None],
    ) -> None:
        self._loop = loop
        self._process_of = process_of
        self._on_replaced = on_replaced
        self._keys: set[ProcessKey] = set()
        self._timer: TimerHandle | None = None

    def add(self, key: ProcessKey) -> None:
        """Check a process from now on."""
        process = self._process_of(key)
        if process is None or not process.stack:
            return
        if is_replaced(process):
            self._on_replaced(key)
            return
        self._keys.add(key)
        if self._timer is None:
            self._timer = self._loop.call_later(_PERIOD_S, self._check)

    def discard(self, key: ProcessKey) -> None:
        """Stop checking a process: a connection speaks for it, or it has exited."""
        self._keys.discard(key)

    def close(self) -> None:
        """Stop checking."""
        self._keys.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        keys, self._keys, self._timer = self._keys, set(), None
        for key in keys:
            self.add(key)


def is_replaced(process: Process) -> bool:
    """Return whether a process runs another program than when it registered."""
    if not process.stack or process.player is not None:
        return False
    return stack_start(process.key.pid) not in {0, process.stack}
