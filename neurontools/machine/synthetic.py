"""Synthetic processes: made up by a player, which writes their telemetry pages, so that dashboards have something to show.

Their pids lie above every pid that the operating system gives, they compete for cores and memory as real processes
do, and they are gone when their player is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine.client_errors import error_of
from neurontools.machine.protocol import MAX_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.client import Client

_CHANGES_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """A process to make up; the fields are those of `Client.register`. `uid` None is the player's own user."""

    tag: str = ""
    command: str = ""
    uses_device: bool = True
    cores: tuple[int, ...] | None = None
    count: int | None = None
    runtime_version: str = "NA"
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class SyntheticPlace:
    """A synthetic process on the machine; the descriptor of its telemetry page is the caller's."""

    pid: int
    start_ticks: int
    cores: tuple[int, ...]
    page_fd: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """The device memory that a synthetic process holds on a core from now on."""

    pid: int
    core: int
    nbytes: int


def register_synthetic(
    client: Client, processes: Sequence[SyntheticSpec], known: Sequence[int] = ()
) -> list[SyntheticPlace | NeuronToolsError]:
    """Put synthetic processes on a machine.

    Args:
        client: the machine's; they end with this program.
        processes: what they are.
        known: pids of those that this program has there already.

    Returns:
        For each its place, or why it can't be there.

    Raises:
        DaemonError, NoMachineError: the daemon refuses all of it or is gone.
    """
    places: list[SyntheticPlace | NeuronToolsError] = []
    for start in range(0, len(processes), MAX_DESCRIPTORS):
        wishes = [asdict(process) for process in processes[start : start + MAX_DESCRIPTORS]]
        mine = [*known, *(place.pid for place in places if isinstance(place, SyntheticPlace))]
        answers, descriptors = client.register_synthetic(wishes, mine)
        if sum("error" not in answer for answer in answers) != len(descriptors):
            raise DaemonError("neurond sent no telemetry pages", "neurond logs may say why")
        page_fds = iter(descriptors)
        places += [
            error_of(answer["error"])
            if "error" in answer
            else SyntheticPlace(answer["pid"], answer["start_ticks"], tuple(answer["cores"]), next(page_fds))
            for answer in answers
        ]
    return places


def unregister_synthetic(client: Client, pids: Sequence[int]) -> None:
    """Take synthetic processes off a machine; those that are not there (any more) are no error."""
    client.call("unregister_synthetic", pids=list(pids))


def reserve_synthetic(client: Client, changes: Sequence[Reservation]) -> list[NeuronToolsError | None]:
    """Let synthetic processes hold so much device memory, whatever they held before.

    Returns:
        For each None, or why it holds what it held before: `OutOfDeviceMemoryError` when the device is full.
    """
    answers = []
    for start in range(0, len(changes), _CHANGES_AT_ONCE):
        wanted = [asdict(change) for change in changes[start : start + _CHANGES_AT_ONCE]]
        answers += client.call("reserve_synthetic", changes=wanted)["changes"]
    return [error_of(answer["error"]) if "error" in answer else None for answer in answers]
