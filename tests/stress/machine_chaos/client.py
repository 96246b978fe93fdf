"""A client of the chaos test: it does what programs do, in random order, records its state, and ends badly."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError
from neurontools.machine import render_client
from neurontools.machine.client import Client
from neurontools.machine.connection import SilentDaemonError
from neurontools.machine.pages.page import PageWriter
from neurontools.machine.processes import ProcessKey, is_alive, this_process
from neurontools.machine.protocol import CoresBusyError, OutOfDeviceMemoryError
from tests.stress.machine_chaos.shared_state import Belief, Word

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stress.machine_chaos.shared_state import ClientSlot, SharedState

SIZES = (1, 4096, 1 << 20, 1 << 30, 1 << 36)
# The daemon may refuse, be gone or be killed again and again. It may not forget a process or fail in itself.
NEVER_EXPECTED = (
    "no longer knows",
    "neurond failed",
    "is not registered",
    "does not hold",
    "no telemetry page",
)


class WrongError(Exception):
    """The machine did something that it must never do."""


class ChaosClient:
    """One client.

    Args:
        shared_state: where it notes what it believes.
        slot: its place there.
        core_count: of the machine.
        rest_s: the longest pause between two things that it does.
        report_error: called with a description of what must never happen.
    """

    def __init__(
        self,
        shared_state: SharedState,
        slot: ClientSlot,
        core_count: int,
        rest_s: float,
        report_error: Callable[[str], None],
    ) -> None:
        self._shared_state = shared_state
        self._slot = slot
        self._core_count = core_count
        self._rest_s = rest_s
        self._report_error = report_error
        self._client = Client("chaos")
        self._page: PageWriter | None = None
        self._unsure_cores: set[int] = set()

    def run(self, actions: int) -> None:
        """Do a number of actions, then end in a random way."""
        key = this_process()
        self._slot[Word.PID], self._slot[Word.START_TICKS] = key.pid, key.start_ticks
        for _ in range(actions):
            self._rest()
            self._try(self._choose())
        self._rest()
        endings = [self._exit, self._raise, self._kill, self._exec, self._unregister_and_exit]
        random.choices(endings, [3, 2, 4, 1, 2])[0]()

    def _choose(self) -> Callable[[], None]:
        if self._slot[Word.BELIEF] != Belief.REGISTERED:
            return random.choices([self._register, self._query, self._fork], [8, 2, 1])[0]
        choices = [
            self._execute,
            self._allocate,
            self._free,
            self._query,
            self._reconnect,
            self._fork,
            self._unregister,
        ]
        return random.choices(choices, [8, 6, 4, 1, 1, 1, 2])[0]

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (CoresBusyError, OutOfDeviceMemoryError):
            return
        except NoMachineError:
            time.sleep(0.02)  # it was killed; its owner starts it again
        except DaemonError as error:
            if isinstance(error, SilentDaemonError) or any(
                words in error.message for words in NEVER_EXPECTED
            ):
                raise WrongError(f"{action.__name__}: {error.message}") from error

    def _rest(self) -> None:
        time.sleep(random.random() * self._rest_s)
        while self._shared_state.paused:
            if self._slot[Word.BELIEF] == Belief.UNSURE:
                self._try(self._unregister_unsure)
            elif self._unsure_cores:
                self._try(self._retry_reservation)
            else:
                self._slot[Word.AT_REST] = 1
                time.sleep(0.02)
        self._slot[Word.AT_REST] = 0

    def _unregister_unsure(self) -> None:
        self._client.unregister()
        self._slot[Word.BELIEF] = Belief.NOT_REGISTERED

    def _retry_reservation(self) -> None:
        core = next(iter(self._unsure_cores))
        self._reserve(core, self._slot.held_bytes(core))

    def _register(self) -> None:
        slot = self._slot
        slot[Word.BELIEF] = Belief.UNSURE
        kind = random.random()
        try:
            if kind < 0.1:
                place = self._client.register("chaos", "looks on", uses_device=False)
            elif kind < 0.6:
                place = self._client.register("chaos", "a number of cores", count=random.randint(1, 4))
            else:
                wanted = random.sample(range(self._core_count), random.randint(1, 3))
                place = self._client.register("chaos", "chosen cores", cores=tuple(wanted))
        except (CoresBusyError, OutOfDeviceMemoryError):
            slot[Word.BELIEF] = Belief.NOT_REGISTERED
            raise
        self._record_owners(place.cores)
        try:
            self._page = PageWriter(place.page_fd)
        finally:
            os.close(place.page_fd)
        slot[Word.REGISTRATIONS] += 1
        slot.cores = place.cores
        slot[Word.BELIEF] = Belief.REGISTERED

    def _record_owners(self, cores: tuple[int, ...]) -> None:
        shared_state, own_number = self._shared_state, self._slot.index + 1
        for core in cores:
            owner = shared_state.believed_owner(core)
            if owner not in {0, own_number}:
                slot = shared_state.slots[owner - 1]
                key = ProcessKey(slot[Word.PID], slot[Word.START_TICKS])
                if slot[Word.BELIEF] == Belief.REGISTERED and core in slot.cores and is_alive(key):
                    raise WrongError(
                        f"core {core} given to {os.getpid()}, but {key.pid} is alive and owns it"
                    )
            shared_state.set_believed_owner(core, own_number)

    def _release(self) -> None:
        slot = self._slot
        slot[Word.BELIEF] = Belief.UNSURE
        for core in slot.cores:
            slot.hold(core, 0)
            self._shared_state.set_believed_owner(core, 0)
        slot.cores = ()
        self._unsure_cores.clear()
        if self._page is not None:
            self._page.close()
            self._page = None

    def _unregister(self) -> None:
        self._release()
        self._client.unregister()
        self._slot[Word.BELIEF] = Belief.NOT_REGISTERED

    def _execute(self) -> None:
        slot, page, cores = self._slot, self._page, self._slot.cores
        if page is None or not cores:
            return
        for _ in range(random.randint(1, 300)):
            place = random.randrange(len(cores))
            slot[Word.EXECUTIONS_BEGUN] += 1
            page.begin(place)
            page.end(place, random.choice((0, 0, 0, 1, 5)), 1000, 1)
            slot[Word.EXECUTIONS_DONE] += 1

    def _allocate(self) -> None:
        if self._slot.cores:
            core = random.choice(self._slot.cores)
            self._reserve(core, self._slot.held_bytes(core) + random.choice(SIZES))

    def _free(self) -> None:
        held = [core for core in self._slot.cores if self._slot.held_bytes(core)]
        if held:
            core = random.choice(held)
            self._reserve(core, random.choice((0, self._slot.held_bytes(core) - 1)))

    def _reserve(self, core: int, total_bytes: int) -> None:
        sure_before = core not in self._unsure_cores
        self._unsure_cores.add(core)
        try:
            self._client.reserve(core, total_bytes)
        except OutOfDeviceMemoryError:
            if sure_before:
                self._unsure_cores.discard(core)
            raise
        self._slot.hold(core, total_bytes)
        self._unsure_cores.discard(core)

    def _query(self) -> None:
        if random.random() < 0.5:
            self._client.call("describe")
        else:
            try:
                reply = render_client.request(random.choice([[], ["-j"], ["-t"], ["-a"]]), "chaos")
            except ConnectionResetError:
                return  # the daemon was killed
            if reply is not None and (reply[0] or not reply[1]):
                raise WrongError(f"neuron-ls ended with {reply[0]}")

    def _reconnect(self) -> None:
        self._client.close()

    def _fork(self) -> None:
        # The child outlives this call, perhaps its parent; it owns nothing, whatever its parent owns.
        if os.fork() == 0:
            try:
                time.sleep(random.random() * self._rest_s)
                self._client.reserve(0, 1)
                self._report_error(f"{os.getpid()}, a forked child, may use the memory of its parent")
            except NeuronToolsError:
                time.sleep(random.random() * self._rest_s)
            finally:
                os._exit(0)

    def _exit(self) -> None:
        os._exit(random.randrange(4))

    def _raise(self) -> None:
        raise KeyboardInterrupt

    def _kill(self) -> None:
        if self._slot.cores and self._page is not None and random.random() < 0.5:
            self._die_while_executing()
        os.kill(os.getpid(), random.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGABRT)))

    def _die_while_executing(self) -> None:
        # As the out-of-memory killer would: at any time, most likely in the middle of a change.
        me = os.getpid()
        if os.fork() == 0:
            time.sleep(random.random() * 0.005)
            if os.getppid() == me:
                os.kill(me, signal.SIGKILL)
            os._exit(0)
        while True:
            self._execute()

    def _exec(self) -> None:
        self._release()
        self._slot[Word.BELIEF] = Belief.NOT_REGISTERED
        self._slot[Word.AT_REST] = 1
        os.execv("/bin/sleep", ["sleep", "15"])

    def _unregister_and_exit(self) -> None:
        if self._slot[Word.BELIEF] == Belief.REGISTERED:
            self._try(self._unregister)
        os._exit(0)
