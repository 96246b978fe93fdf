"""Signal handlers that raise the errors of system calls while a program talks to the daemon.

The handler runs at a chosen bytecode of the device's code. Its exception arrives in the program each time, a request
has been applied once or not at all, and the next one is answered.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import traceback
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.cache.store import CompileCache
from neurontools.machine.client import Client
from neurontools.machine.faults.params import Action
from neurontools.runtime import session
from neurontools.runtime.session import Runtime
from tests.cache.conftest import TRN1
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from neurontools.machine.machine_config import DaemonInfo

pytestmark = pytest.mark.usefixtures("daemon")
MOMENTS = 100


class Alarm(int):
    """A signal that arrives when `now` is read: its handler runs at the next call."""

    now = property(_thread.interrupt_main)


class Interruption:
    """Raises an exception from the handler of SIGALRM at a bytecode of this package's code."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error
        self._left = 0
        self.seen = 0
        self.raised: Exception | None = None
        self.place = ""

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.raised = self._error("alarm")
        self.place = "".join(traceback.format_stack(frame)[-4:])
        raise self.raised

    def call(self, action: Callable[[], object], moment: int) -> Exception | None:
        """Return what an action raises if the alarm rings at this bytecode of it, the first being 1; 0: never."""
        self._left, self.seen, self.raised = moment, 0, None
        sys.settrace(self._trace)
        try:
            action()
            sys.settrace(None)
        except OSError as error:
            return error
        finally:
            sys.settrace(None)
        return None

    def _trace(self, frame: FrameType, event: str, value: object) -> Any:
        if "neurontools" not in frame.f_code.co_filename or frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, value: object) -> Any:
        self.seen += 1
        self._left -= 1
        if self._left == 0:
            sys.settrace(None)  # or the handler would run in the next call of this function
            _ALARM.now  # noqa: B018
        return self._step


_ALARM = Alarm(signal.SIGALRM)


@pytest.fixture(params=[TimeoutError, ConnectionResetError])
def interruption(request: pytest.FixtureRequest) -> Iterator[Interruption]:
    interruption = Interruption(request.param)
    previous = signal.signal(signal.SIGALRM, interruption.handle)
    yield interruption
    signal.signal(signal.SIGALRM, previous)


def check(
    interruption: Interruption,
    action: Callable[[], object],
    count: Callable[[], int],
    moments: int = MOMENTS,
) -> None:
    """Interrupt an action, which `count` counts, at many moments."""
    action()
    interruption.call(action, 0)
    bytecodes = interruption.seen * 9 // 10  # their number varies a little
    assert bytecodes > 0
    for number in range(moments):
        before = count()
        error = interruption.call(action, 1 + number * bytecodes // moments)
        assert error is not None, interruption.place
        assert error is interruption.raised
        assert count() - before in {0, 1}
    before = count()
    action()
    assert count() == before + 1


def test_a_fault_is_injected_once_or_not_at_all(client: Client, interruption: Interruption) -> None:
    check(interruption, lambda: client.inject("slow-core", core=3, factor=2.0), lambda: len(client.faults()))


def test_an_execution_is_counted_once_or_not_at_all(client: Client, interruption: Interruption) -> None:
    client.register(cores=(3,))
    fault = client.inject("slow-core", core=3, factor=2.0)

    def hits() -> int:
        (found,) = [each for each in client.faults() if each.id == fault.id]
        return found.hits

    check(interruption, lambda: client.take_fault(3, action=Action.EXECUTION), hits)


def test_questions_about_faults_and_machines_are_interrupted(
    client: Client, interruption: Interruption
) -> None:
    asked = [0]

    def ask() -> None:
        asked[0] += 1
        client.holds_fault(1, 3)
        client.snapshot()

    check(interruption, ask, lambda: asked[0])


def test_cores_are_claimed_by_a_runtime_or_free(client: Client, interruption: Interruption) -> None:
    environ = {**os.environ, "NEURON_RT_VISIBLE_CORES": "3"}
    opened = [0]

    def claim() -> None:
        with closing(Runtime.open(environ=environ)):
            opened[0] += 1

    def count() -> int:
        left = session._process.runtime  # of an exception after `open` has returned
        assert [process.pid for process in client.snapshot().processes] == [os.getpid()] * (left is not None)
        session._process.close()
        return opened[0]

    check(interruption, claim, count, 40)


def test_a_lookup_in_the_compile_cache_is_interrupted(interruption: Interruption, tmp_path: Path) -> None:
    cache = CompileCache.open(dict(os.environ), str(tmp_path))
    found = [0]

    def look_up() -> None:
        assert cache.get_or_compile(mlp(), TRN1, "mlp").entry
        found[0] += 1

    check(interruption, look_up, lambda: found[0])
    cache.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_connection_is_opened_or_left(daemon: DaemonInfo, interruption: Interruption) -> None:
    opened = [0]

    def ask() -> None:
        with Client.connect() as client:
            opened[0] += 1
            client.faults()

    check(interruption, ask, lambda: opened[0])
