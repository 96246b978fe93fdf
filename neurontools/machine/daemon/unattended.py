"""Whether registered processes that no connection speaks for are still the program that registered.

A program that replaces itself by another one (exec) keeps its pid and its start time, so its pidfd says nothing. But
its connection is closed by that, and of a new program the stack lies elsewhere. What it held is free then, as the
files of a real driver would be closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.processes import stack_of

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle
    from collections.abc import Callable

    from neurontools.machine.events import Process
    from neurontools.machine.processes import ProcessKey

PERIOD_S = 2.0


class Unattended:
    """Looks at such processes when they become unattended, and then every two seconds; without any there is no timer.

    Args:
        loop: runs the timer.
        process_of: the registered process of a key, None when it is not registered (any more).
        on_replaced: told of a process that is another program now.
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
        """Look at a process from now on."""
        process = self._process_of(key)
        if process is None or not process.stack:
            return
        if is_replaced(process):
            self._on_replaced(key)
            return
        self._keys.add(key)
        if self._timer is None:
            self._timer = self._loop.call_later(PERIOD_S, self._look)

    def discard(self, key: ProcessKey) -> None:
        """Look at a process no longer: a connection speaks for it, or it is gone."""
        self._keys.discard(key)

    def close(self) -> None:
        """Look at nothing any more."""
        self._keys.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        keys, self._keys, self._timer = self._keys, set(), None
        for key in keys:
            self.add(key)


def is_replaced(process: Process) -> bool:
    """Return whether a living process is another program than the one that registered."""
    if not process.stack or process.player is not None:
        return False
    return stack_of(process.key.pid) not in {0, process.stack}
