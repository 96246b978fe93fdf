"""Two cores of a launch: one runs at a time, until it waits for the other; so every run has the same order."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from neurontools.nki.context import Location, set_running, user_location
from neurontools.nki.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from neurontools.nki.context import Core


class Aborted(BaseException):
    """Ends the thread of a core after another core failed."""


class Exchange:
    """What the cores of a launch send each other and where they wait.

    Args:
        cores: the cores, of which the first runs first.
    """

    def __init__(self, cores: list[Core]) -> None:
        self._cores = cores
        self._turn = 0
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[Callable[[], bool], str, Location]] = {}
        self._ended: set[int] = set()
        self._arrivals = [0] * len(cores)
        self._mail: dict[tuple[int, int, int], deque[Any]] = {}
        self._failure: BaseException | None = None
        for core in cores:
            core.exchange = self

    def run(self, kernel: Callable[[], Any]) -> list[Any]:
        """Run a kernel on all cores and return its results."""
        results: list[Any] = [None] * len(self._cores)

        def work(number: int) -> None:
            try:
                self._take_turn(number)
                set_running(self._cores[number])
                results[number] = kernel()
            except Aborted:
                pass
            except BaseException as failure:  # noqa: BLE001
                if self._failure is None:
                    self._failure = failure
            finally:
                set_running(None)
                with self._changed:
                    self._ended.add(number)
                    self._waiting.pop(number, None)
                    self._pass_turn(number)

        threads = [
            threading.Thread(target=work, args=(number,), daemon=True, name=f"core {number}")
            for number in range(len(self._cores))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.1)
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

    def _take_turn(self, number: int) -> None:
        with self._changed:
            while self._turn != number and not self.has_failed:
                self._changed.wait()
            if self.has_failed:
                raise Aborted

    def _pass_turn(self, number: int) -> None:
        """Let another core run whose condition holds; the lock is held."""
        count = len(self._cores)
        for step in range(1, count + 1):
            other = (number + step) % count
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
        for number in range(len(self._cores)):
            if number in self._waiting:
                _, what, place = self._waiting[number]
                lines.append(f"note: core {number} waits in {what} at {place}")
            else:
                lines.append(f"note: core {number} has ended")
        _, what, place = next(iter(self._waiting.values()))
        return KernelError(
            "\n".join([f"{place}: {what}: the cores wait for each other for ever", *lines]),
            "all cores must reach the same barriers and exchanges in the same order",
        )

    def _wait(self, core: Core, condition: Callable[[], bool], what: str) -> None:
        place = user_location()
        with self._changed:
            self._waiting[core.number] = (condition, what, place)
            self._pass_turn(core.number)
            while (self._turn != core.number or not condition()) and not self.has_failed:
                self._changed.wait()
            self._waiting.pop(core.number, None)
        if self.has_failed:
            raise Aborted

    def meet(self, core: Core, opcode: str, _key: tuple[Any, ...]) -> None:
        """Wait until all cores are here as often as this one."""
        self._arrivals[core.number] += 1
        mine = self._arrivals[core.number]
        self._wait(core, lambda: min(self._arrivals) >= mine, opcode)

    def swap(self, core: Core, opcode: str, pipe: int, to: int, source: int, values: np.ndarray) -> np.ndarray:
        """Send values to a core and return those that another sends to this one."""
        self._mail.setdefault((pipe, core.number, to), deque()).append(values)
        box = self._mail.setdefault((pipe, source, core.number), deque())
        self._wait(core, lambda: bool(box), opcode)
        received: np.ndarray = box.popleft()
        return received
