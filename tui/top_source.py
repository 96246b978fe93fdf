"""Where neuron-top gets its data: an endless iterator of ticks and troubles. The simulated machine's is here."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from neurontools import env
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError
from neurontools.machine import host, launch
from neurontools.machine.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.snapshot import Snapshot

_FIRST_INTERVAL_S = 0.25
_RETRY_S = (0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Tick:
    """The machine and the host at one moment; `cpu` is None when the machine is not on this host."""

    snapshot: Snapshot
    cpu: host.HostSample | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """There is no new data, and why, in a few words for the title bar."""

    text: str


Update = Tick | Trouble


class Source(Protocol):
    """Something that tells of a machine until it is closed."""

    def updates(self) -> Iterator[Update]:
        """Yield what is new; may block; ends when closed or when a recording ends."""
        ...

    def close(self) -> None:
        """Make `updates` end soon; may be called from another thread."""
        ...


class DaemonSource:
    """The machine that a neurond serves; replaces a daemon that crashed, waits for one that was stopped.

    Args:
        machine: the machine's name, None for the default.
        period_s: time between two ticks.
    """

    def __init__(self, machine: str | None, period_s: float) -> None:
        self._machine = machine
        self._period_s = period_s
        self._closed = threading.Event()

    def updates(self) -> Iterator[Update]:
        """Yield a tick each period; the second one comes early so that rates show at once."""
        failures = 0
        while not self._closed.is_set():
            try:
                for snapshot in self._snapshots():
                    failures = 0
                    yield Tick(snapshot, host.sample_for(snapshot))
                    if self._closed.is_set():
                        break
            except NoMachineError:
                trouble = "machine not running, waiting for it"
            except NeuronToolsError as error:
                trouble = f"{error.message}, retrying"
            except (OSError, ValueError, KeyError, TypeError) as error:
                trouble = f"no data ({error}), retrying"
            else:
                return
            yield Trouble(trouble)
            self._closed.wait(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    def close(self) -> None:
        """End `updates` at its next step."""
        self._closed.set()

    def _snapshots(self) -> Iterator[Snapshot]:
        if launch.has_crashed(self._machine or env.machine()):
            launch.ensure_running(self._machine)
        with _Onlooker.connect(self._machine, reconnect=False) as client:
            with suppress(DaemonError):  # a new daemon knows this process from its old page
                os.close(client.register(command="neuron-top", uses_device=False).page_fd)
            yield client.snapshot()
            self._closed.wait(min(_FIRST_INTERVAL_S, self._period_s))
            yield from client.watch(self._period_s)


class _Onlooker(Client):
    """A client that never starts a machine by itself: whoever only looks must not undo `neurond stop`."""

    def _start_again(self) -> None:
        raise NoMachineError(f"machine {self.machine!r} ended")


class FixedSource:
    """Updates that are known beforehand, given all at once: for tests, screenshots and recordings.

    Args:
        updates: what `updates` yields.
    """

    def __init__(self, *updates: Update) -> None:
        self._updates = updates

    def updates(self) -> Iterator[Update]:
        """Yield them."""
        yield from self._updates

    def close(self) -> None:
        """Nothing to close."""
