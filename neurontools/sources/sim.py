"""The simulated machine as a source of snapshots."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from neurontools import env
from neurontools.errors import DaemonError, NoMachineError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_names import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.machine.snapshot import Snapshot


class SimSource:
    """The machine that a neurond serves.

    A crashed daemon is replaced where NEURONTOOLS_AUTOSTART allows it, a stopped daemon is not.

    Args:
        machine: the machine's name, None for the default.
        looker: list this process among those that look at the devices, under this command; None: don't.
        start: whether a machine that does not run may be started.
        on_notice: gets a line for a person when one was started.

    Raises:
        NoMachineError: the machine does not run and may not be started.
        DaemonError: its daemon refuses or does not answer.
    """

    live = True
    notices: tuple[str, ...] = ()

    def __init__(
        self,
        machine: str | None = None,
        *,
        looker: str | None = None,
        start: bool = True,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        self.machine = check_name(env.machine() if machine is None else machine)
        self.name = f"sim:{self.machine}"
        if start or launch.has_crashed(self.machine):
            launch.ensure_running(self.machine, on_notice)
        self.client: Client = _Onlooker.connect(self.machine)
        if looker is not None:
            with suppress(DaemonError):  # a new daemon knows this process from its old page
                os.close(self.client.register(command=looker, uses_device=False).page_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def snapshot(self) -> Snapshot:
        """Return the machine at this moment.

        Raises:
            NoMachineError: the machine was stopped.
            DaemonError: its daemon refuses or does not answer.
        """
        return self.client.snapshot()

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now, then one every `period_s` seconds, also across a daemon's crash.

        Raises:
            NoMachineError: the machine was stopped.
            DaemonError: its daemon refuses or does not answer.
        """
        return self.client.watch(period_s)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


class _Onlooker(Client):
    """A client that replaces a crashed daemon, but never starts a stopped one: an observer must not undo that."""

    def _start_again(self) -> None:
        if not launch.has_crashed(self.machine):
            raise NoMachineError(f"machine {self.machine!r} ended")
        launch.ensure_running(self.machine)
