"""The ranks on a machine: its cores are claimed while the test runs, and its telemetry shows the executions."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from neurontools.collectives.fabric import Fabric, fabric
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.pages.page import PageWriter
from neurontools.machine.wire import is_answering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")
_SUCCESS, _FAILURE = 0, 1  # NRT status numbers
# Executions of one row that telemetry shows; writing more would take longer than anything else.
_COUNTED_MAX = 200


class CollectiveFailedError(NeuronToolsError):
    """A rank's execution failed, and so did the collective; `status` is the NRT status number."""

    def __init__(self, message: str, remedy: str, *, status: int) -> None:
        super().__init__(message, remedy)
        self.status = status


class Faults(Protocol):
    """What the machine's faults do to a collective on one core."""

    def __call__(self, core: int) -> tuple[int, float]:
        """Return the status to count and how many times as long it takes.

        Raises:
            CollectiveFailedError: a fault makes it fail.
        """


class Ranks(Protocol):
    """Where the iterations of a row are executed."""

    def execute(self, times_s: tuple[float, ...], work: Callable[[], _T], /) -> tuple[_T, tuple[float, ...]]:
        """Do `work` in a first iteration, then the others.

        Returns:
            The result of `work`, and for the first iterations how many times as long as modelled they take; those
            that follow take as long as the last of them.

        Raises:
            CollectiveFailedError: a fault makes an iteration fail.
        """


class NoRanks:
    """Ranks of a model without a machine: nothing is claimed, nothing is counted."""

    def execute(self, _times_s: tuple[float, ...], work: Callable[[], _T], /) -> tuple[_T, tuple[float, ...]]:
        """Do `work`."""
        return work(), ()


class ClaimedRanks:
    """Ranks on claimed cores.

    Args:
        writer: the process's telemetry page.
        faults: what they do to a collective; asked only while faults are armed for this process.
        paced: whether every iteration lasts as long as the model says.
    """

    def __init__(self, writer: PageWriter, faults: Faults, *, paced: bool) -> None:
        self._writer = writer
        self._faults = faults
        self._paced = paced

    def execute(self, times_s: tuple[float, ...], work: Callable[[], _T], /) -> tuple[_T, tuple[float, ...]]:
        """Do `work` in a first iteration, then the others, all of them counted in the telemetry page."""
        result, slower = self._iteration(times_s[0], work)
        others = times_s[1:] if self._paced else times_s[1:_COUNTED_MAX]
        return result, (slower, *(self._iteration(time_s, lambda: None)[1] for time_s in others))

    def _iteration(self, time_s: float, work: Callable[[], _T]) -> tuple[_T, float]:
        cores = self._writer.cores
        statuses = [_FAILURE] * len(cores)
        since_ns, slower = time.monotonic_ns(), 1.0
        for slot in range(len(cores)):
            self._writer.begin(slot)
        try:
            reached = [_SUCCESS] * len(cores)
            if self._writer.armed_faults:
                slower = self._meet_faults(cores, statuses, reached)
            result = work()
            if self._paced:
                time.sleep(max(since_ns + time_s * slower * 1e9 - time.monotonic_ns(), 0) / 1e9)
            statuses = reached
        finally:
            wall_ns = time.monotonic_ns() - since_ns
            for slot, status in enumerate(statuses):
                self._writer.end(slot, status, wall_ns)
        return result, slower

    def _meet_faults(self, cores: tuple[int, ...], statuses: list[int], reached: list[int]) -> float:
        # The slowest rank decides how long all take; where one fails, the others cannot finish.
        slowest = 1.0
        for slot, core in enumerate(cores):
            try:
                reached[slot], slower = self._faults(core)
            except CollectiveFailedError as error:
                statuses[slot] = error.status
                raise
            slowest = max(slowest, slower)
        return slowest


@dataclass(frozen=True, slots=True)
class MachineView:
    """What a test needs to know of a machine: its name, its fabric and its cores."""

    name: str
    over: Fabric
    cores: tuple[int, ...]


def look(machine: str, on_notice: Callable[[str], None]) -> MachineView:
    """Return a machine, started if need be.

    Raises:
        NoMachineError: it does not run and may not be started.
        DaemonError: the daemon refuses or fails.
    """
    launch.ensure_running(machine, on_notice)
    with Client.connect(machine) as client:
        seen = client.snapshot()
    cores = tuple(core for device in seen.devices for core in device.core_ids)
    return MachineView(machine, fabric(seen.instance_type, seen.lnc), cores)


def check_lnc(view: MachineView, wanted: int | None) -> None:
    """Refuse a machine with another logical NeuronCore configuration than NEURON_LOGICAL_NC_CONFIG says.

    Raises:
        UsageError: that is so.
    """
    if wanted is not None and wanted != view.over.lnc:
        kind = instance_type(view.over.instance)
        start = f"start one with it: neurond start --instance {kind.name} --lnc {wanted} --name NAME"
        raise UsageError(
            f"NEURON_LOGICAL_NC_CONFIG={wanted}, but machine {view.name!r} runs with {view.over.lnc}",
            start if wanted in kind.device.lnc_choices else f"unset it: {kind.name} has no other",
        )


@contextmanager
def claimed(
    machine: str,
    cores: tuple[int, ...],
    faults_of: Callable[[Client, PageWriter], Faults],
    *,
    command: str,
    tag: str,
    runtime_version: str,
    paced: bool,
) -> Iterator[ClaimedRanks]:
    """Hold cores of a machine.

    Args:
        machine: its name.
        cores: machine-wide logical ids, one for every rank.
        faults_of: makes what knows the faults of this process.
        command: the command line to show.
        tag: what NEURON_PROCESS_TAG says.
        runtime_version: to show.
        paced: whether every iteration lasts as long as the model says.

    Raises:
        CoresBusyError: another process holds one of them.
        DaemonError: the daemon refuses or fails.
    """
    client = Client.connect(machine)
    try:
        place = client.register(
            tag=tag, command=command, cores=tuple(sorted(cores)), runtime_version=runtime_version
        )
        try:
            writer = PageWriter(place.page_fd)
        finally:
            os.close(place.page_fd)
        try:
            yield ClaimedRanks(writer, faults_of(client, writer), paced=paced)
        finally:
            writer.close()
            _leave(client)
    finally:
        client.close()


def _leave(client: Client) -> None:
    # Without a daemon the end of the process frees the cores.
    try:
        if is_answering(client.machine):
            client.unregister()
    except NeuronToolsError:
        pass
