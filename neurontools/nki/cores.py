"""Cores that run a kernel together: one runs at a time, until it waits for others; so every run has the same order."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.context import set_running
from neurontools.nki.errors import KernelError
from neurontools.nki.locations import UserLine, user_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.nki.context import Core


class Aborted(BaseException):
    """Ends the thread of a core after another core failed."""


class Exchange:
    """What the cores of one or several launches send each other and where they wait.

    Args:
        cores: the cores, launch by launch, of which the first runs first.
    """

    def __init__(self, cores: list[Core]) -> None:
        self._cores = cores
        self._turn = 0
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[Callable[[], bool], str, UserLine]] = {}
        self._ended: set[int] = set()
        self._arrivals = [0] * len(cores)
        self._gathers = [0] * len(cores)
        self._mail: dict[tuple[int, int, int, int], deque[Any]] = {}
        self._gathered: dict[tuple[int, int], dict[int, Any]] = {}
        self._failure: BaseException | None = None
        for slot, core in enumerate(cores):
            core.exchange, core.slot = self, slot

    def run(self, kernels: list[Callable[[], Any]]) -> list[Any]:
        """Run a kernel on each core and return their results."""
        results: list[Any] = [None] * len(self._cores)

        def work(slot: int) -> None:
            try:
                self._take_turn(slot)
                set_running(self._cores[slot])
                with np.errstate(all="ignore"):  # the setting belongs to a thread
                    results[slot] = kernels[slot]()
            except Aborted:
                pass
            except BaseException as failure:  # noqa: BLE001
                if self._failure is None:
                    self._failure = failure
            finally:
                set_running(None)
                with self._changed:
                    self._ended.add(slot)
                    self._waiting.pop(slot, None)
                    self._pass_turn(slot)

        threads = [
            threading.Thread(target=work, args=(slot,), daemon=True, name=f"core {slot}")
            for slot in range(len(self._cores))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_LOOK_S)
        except BaseException as interruption:
            self._failure = interruption
            with self._changed:
                self._changed.notify_all()
            raise
        if self._failure is not None:
            raise self._failure
        return results

    @property
    def has_failed(self) -> bool:
        """Whether a core ended with an error or the user interrupted the launch."""
        return self._failure is not None

    def _take_turn(self, slot: int) -> None:
        with self._changed:
            while self._turn != slot and not self.has_failed:
                self._changed.wait()
            if self.has_failed:
                raise Aborted

    def _pass_turn(self, slot: int) -> None:
        """Let another core run whose condition holds; the lock is held."""
        count = len(self._cores)
        for step in range(1, count + 1):
            other = (slot + step) % count
            if other in self._ended:
                continue
            waits = self._waiting.get(other)
            if waits is None or waits[0]():
                self._turn = other
                self._changed.notify_all()
                return
        if len(self._ended) < count and self._failure is None:
            self._failure = self._deadlock()
        self._changed.notify_all()

    def _deadlock(self) -> KernelError:
        lines = []
        for slot, core in enumerate(self._cores):
            name = (
                f"core {core.number}"
                if core.launch.world_size == 1
                else f"rank {core.launch.rank} core {core.number}"
            )
            if slot in self._waiting:
                _, what, place = self._waiting[slot]
                lines.append(f"note: {name} waits in {what} at {place}")
            else:
                lines.append(f"note: {name} has ended")
        _, what, place = next(iter(self._waiting.values()))
        return KernelError(
            "\n".join([f"{place}: {what}: the cores wait for each other for ever", *lines[:_MOST_NOTES]]),
            "all cores must reach the same barriers and exchanges in the same order",
        )

    def _wait(self, core: Core, condition: Callable[[], bool], what: str) -> None:
        place = user_location()
        with self._changed:
            self._waiting[core.slot] = (condition, what, place)
            self._pass_turn(core.slot)
            while (self._turn != core.slot or not condition()) and not self.has_failed:
                self._changed.wait()
            self._waiting.pop(core.slot, None)
        if self.has_failed:
            raise Aborted

    def let_others(self, core: Core) -> None:
        """Let the other cores catch up before a write that they can see: on the device all run at the same time."""
        self._wait(core, lambda: True, "a store to shared HBM")

    def meet(self, core: Core, opcode: str) -> None:
        """Wait until all cores of the launch are here as often as this one."""
        self._arrivals[core.slot] += 1
        mine = self._arrivals[core.slot]
        others = [other.slot for other in core.launch.cores]
        self._wait(core, lambda: min(self._arrivals[slot] for slot in others) >= mine, opcode)

    def swap(
        self, core: Core, opcode: str, pipe: int, to: int, source: int, values: np.ndarray
    ) -> np.ndarray:
        """Send values to a core of the launch and return those that another sends to this one."""
        rank = core.launch.rank
        self._mail.setdefault((rank, pipe, core.number, to), deque()).append(values)
        box = self._mail.setdefault((rank, pipe, source, core.number), deque())
        self._wait(core, lambda: bool(box), opcode)
        received: np.ndarray = box.popleft()
        return received

    def gather(self, core: Core, opcode: str, payload: Any) -> list[Any]:
        """Return what the cores of the same number pass in the same call, by rank of their launches."""
        key = (core.number, self._gathers[core.slot])
        self._gathers[core.slot] += 1
        parts = self._gathered.setdefault(key, {})
        parts[core.launch.rank] = payload
        size = core.launch.world_size
        self._wait(core, lambda: len(parts) == size, opcode)
        return [parts[rank] for rank in range(size)]


_LOOK_S = 0.1
_MOST_NOTES = 8
