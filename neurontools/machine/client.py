"""The programs' side of neurond: synchronous, standard library only, connects again when the daemon was replaced."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from neurontools import env
from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine import wire
from neurontools.machine.client_errors import (
    CoresBusyError,
    OtherVersionError,
    OutOfDeviceMemoryError,
    SilentDaemonError,
    ended,
    ends_always,
)
from neurontools.machine.faults.calls import FaultCalls
from neurontools.machine.naming import check_name
from neurontools.machine.protocol import RENDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.machine.snapshot import Snapshot

__all__ = [
    "Client",
    "CoresBusyError",
    "OtherVersionError",
    "OutOfDeviceMemoryError",
    "Registration",
    "SilentDaemonError",
]


@dataclass(frozen=True, slots=True)
class Registration:
    """A process's place on a machine: cores by machine-wide logical id, and its telemetry page, whose fd is the caller's."""

    cores: tuple[int, ...]
    page_fd: int
    instance_type: str
    lnc: int
    machine: str


class Client(FaultCalls):
    """A connection to the daemon of one machine. One call at a time; threads may share it.

    After the daemon was replaced (killed and started again) the next call connects again; a forked child starts
    with a connection of its own and without its parent's registration.

    Args:
        machine: the machine's name.
        reconnect: whether a call connects again, and starts the machine again where that is allowed, after the
            connection broke.
        start_again: how the machine is started again; None: `launch.ensure_running`.
    """

    def __init__(
        self, machine: str, *, reconnect: bool = True, start_again: Callable[[], None] | None = None
    ) -> None:
        self.machine = machine
        self._reconnect = reconnect
        self._restart = start_again
        self._lock = threading.RLock()
        self._wire: wire.Wire | None = None
        self._registered = False
        # Set while a request was sent that may have been handled though no answer came.
        self._unanswered = False
        self._registration_in_doubt = False
        self._held: dict[int, int] = {}
        self._held_in_doubt: set[int] = set()
        _clients.add(self)

    @classmethod
    def connect(
        cls,
        machine: str | None = None,
        *,
        reconnect: bool = True,
        start_again: Callable[[], None] | None = None,
    ) -> Self:
        """Return a client of a running machine; starts nothing.

        Args:
            machine: its name, None for the one that NEURONTOOLS_MACHINE names.
            reconnect: as in the class.
            start_again: as in the class.

        Raises:
            NoMachineError: no daemon runs under that name.
            DaemonError: it refuses, does not answer, or speaks another protocol version.
        """
        client = cls(
            check_name(env.machine() if machine is None else machine),
            reconnect=reconnect,
            start_again=start_again,
        )
        try:
            client._wire = client._greeted(owner=False)
        except ConnectionError as error:
            raise ended(client.machine) from error
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. What the process registered stays until it unregisters or ends."""
        with self._lock:
            self._drop()

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result.

        Raises:
            CoresBusyError, OutOfDeviceMemoryError, DaemonError: the daemon refuses or does not answer.
            NoMachineError: the daemon is gone and may not be started again.
        """
        with self._lock:
            return self._call(method, params)

    def snapshot(self) -> Snapshot:
        """Return the machine at this moment."""
        from neurontools.machine.snapshot import snapshot_from_json

        return snapshot_from_json(self.call("snapshot"))

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now and then every `period_s` seconds, on a connection of its own, until that one breaks.

        When the daemon was replaced the iteration goes on with the new one.

        Raises:
            NoMachineError: the daemon is gone and may not be started again.
        """
        while True:
            stream = self._greeted(owner=False)
            try:
                stream.call("watch", {"period_s": period_s, "changes": True})
                yield from _pushed(stream, period_s + wire.ANSWER_TIMEOUT_S)
            except ConnectionError:
                self._start_again()
            finally:
                stream.close()

    def render(self, tool: str, argv: list[str], emulate: str) -> tuple[int, bytes, bytes]:
        """Return exit code, stdout and stderr of a tool, rendered by the daemon.

        Raises:
            DaemonError: the answer breaks off.
        """
        words = "\0".join([tool, emulate, *argv]).replace("\n", " ")
        return wire.rendered(self.machine, RENDER + words.encode("utf-8", "surrogateescape") + b"\n")

    def register(
        self,
        tag: str = "",
        command: str = "",
        *,
        uses_device: bool = True,
        cores: tuple[int, ...] | None = None,
        count: int | None = None,
        runtime_version: str = "NA",
        reset_cores: bool = True,
    ) -> Registration:
        """Put this process on the machine.

        Args:
            tag: what NEURON_PROCESS_TAG says.
            command: the command line to show.
            uses_device: False for a process that only looks and claims nothing.
            cores: machine-wide logical ids to claim.
            count: how many cores to claim where `cores` is None; 0 or None: all of the machine.
            runtime_version: to show; "NA" for a process without a runtime.
            reset_cores: mend what memory errors broke of the cores.

        Raises:
            CoresBusyError: another process holds such a core.
            DaemonError: the process is registered already, or there are no such cores.
        """
        wishes = {
            "tag": tag,
            "command": command,
            "uses_device": uses_device,
            "cores": None if cores is None else list(cores),
            "count": count,
            "runtime_version": runtime_version,
            "reset_cores": reset_cores,
        }
        with self._lock:
            answer = self._call_of_registration("register", wishes)
            page_fd = self._wire.take_descriptor() if self._wire else None
            if page_fd is None:
                raise DaemonError("neurond sent no telemetry page", "neurond logs may say why")
            self._registered = True
            self._forget_memory()
        return Registration(
            tuple(answer["cores"]), page_fd, answer["instance_type"], answer["lnc"], answer["machine"]
        )

    def unregister(self) -> None:
        """Take this process off the machine."""
        with self._lock:
            self._registered = False
            self._forget_memory()
            self._call_of_registration("unregister", {})

    def register_synthetic(
        self, wishes: list[dict[str, Any]], known: list[int]
    ) -> tuple[list[dict[str, Any]], list[int]]:
        """Put made-up processes on the machine; `neurontools.machine.synthetic` is the comfortable way.

        Args:
            wishes: what `register` takes, for each.
            known: pids of this process's synthetic ones: others are taken off when the call has to be repeated.

        Returns:
            For each its pid and cores, or an error; descriptors of the pages of those without an error.
        """
        with self._lock:
            answer = self._call("register_synthetic", {"processes": wishes}, {"known": known})["processes"]
            admitted = sum("error" not in each for each in answer)
            return answer, self._wire.take_descriptors(admitted) if self._wire else []

    def allocate(self, core: int, nbytes: int) -> None:
        """Reserve device memory on one of this process's cores (machine-wide id).

        Raises:
            OutOfDeviceMemoryError: the device is full.
        """
        self._reserve("allocate", core, nbytes)

    def free(self, core: int, nbytes: int) -> None:
        """Give device memory back."""
        self._reserve("free", core, nbytes)

    def _reserve(self, method: str, core: int, nbytes: int) -> None:
        with self._lock:
            held = {"held": self._held.get(core, 0)}
            params = {"core": core, "nbytes": nbytes}
            try:
                in_doubt = held if core in self._held_in_doubt else {}
                answer = self._call(method, {**params, **in_doubt}, held)
            except NeuronToolsError:
                if self._unanswered:
                    self._held_in_doubt.add(core)
                raise
            self._held_in_doubt.discard(core)
            self._held[core] = answer["reserved_bytes"]

    def _call_of_registration(self, method: str, params: dict[str, Any]) -> Any:
        try:
            answer = self._call(method, params)
        except NeuronToolsError:
            # The daemon may know this process though its caller was told that something went wrong.
            self._registration_in_doubt = self._unanswered
            raise
        self._registration_in_doubt = False
        return answer

    def _call(self, method: str, params: dict[str, Any], when_repeated: dict[str, Any] | None = None) -> Any:
        self._unanswered = False
        try:
            return self._once(method, params)
        except ConnectionError as error:
            if not self._reconnect:
                raise ended(self.machine) from error
        self._start_again()
        try:
            return self._once(method, {**params, **(when_repeated or {})})
        except ConnectionError as error:
            raise ends_always(self.machine) from error

    def _once(self, method: str, params: dict[str, Any]) -> Any:
        if self._wire is None:
            self._wire = self._greeted(owner=self._registered)
        self._unanswered = True
        try:
            result = self._wire.call(method, params)
        except (ConnectionError, SilentDaemonError):
            self._drop()
            raise
        except NeuronToolsError:
            self._unanswered = False
            raise
        self._unanswered = False
        return result

    def _greeted(self, *, owner: bool) -> wire.Wire:
        new = wire.Wire(self.machine)
        try:
            answer = new.hello(os.path.basename(sys.argv[0]), owner=owner)
            if self._registered and answer["registered"] is None:
                raise DaemonError(  # noqa: TRY301  the connection is closed below
                    f"machine {self.machine!r} does not know process {os.getpid()} any more",
                    "its records were deleted; start the program again",
                )
            if self._registration_in_doubt and not self._registered:
                new.call("unregister", {})
                self._registration_in_doubt = False
        except BaseException:
            new.close()
            raise
        return new

    def _forget_memory(self) -> None:
        self._held.clear()
        self._held_in_doubt.clear()

    def _start_again(self) -> None:
        if self._restart is not None:
            self._restart()
            return
        from neurontools.machine import launch

        launch.ensure_running(self.machine)

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _forked(self) -> None:
        # The connection speaks for the parent, which alone is registered; the lock may be held by a thread of it.
        self._lock = threading.RLock()
        self._registered = self._registration_in_doubt = False
        self._forget_memory()
        self._drop()


def _pushed(stream: wire.Wire, within_s: float) -> Iterator[Snapshot]:
    from neurontools.machine.changes import pushed

    snapshot: Snapshot | None = None
    while True:
        snapshot = pushed(snapshot, *stream.push(within_s))
        yield snapshot


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forget_in_child() -> None:
    for client in list(_clients):
        client._forked()  # noqa: SLF001  of this module


os.register_at_fork(after_in_child=_forget_in_child)
