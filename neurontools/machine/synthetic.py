"""Synthetic processes: added by a player, which writes their telemetry pages, so that dashboards show activity.

Their pids lie above every pid that the operating system gives. They compete for cores and memory as real processes
do, and they end with their player.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neurontools.errors import DaemonError, NeuronToolsError
from neurontools.machine.client_errors import error_from
from neurontools.machine.protocol import MAX_DESCRIPTORS
from neurontools.machine.requests import (
    Empty,
    RegisterSyntheticRequest,
    Reservation,
    ReservationOutcomes,
    ReserveSyntheticRequest,
    SyntheticOutcomes,
    SyntheticSpec,
    UnregisterSyntheticRequest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.client import Client

__all__ = [
    "Reservation",
    "SyntheticPlace",
    "SyntheticSpec",
    "register_synthetic",
    "reserve_synthetic",
    "unregister_synthetic",
]

_RESERVATIONS_PER_CALL = 2000


class SyntheticPlace(NamedTuple):
    """A synthetic process on the machine; the descriptor of its telemetry page is the caller's."""

    pid: int
    start_ticks: int
    cores: tuple[int, ...]
    page_fd: int


def register_synthetic(
    client: Client, processes: Sequence[SyntheticSpec], known: Sequence[int] = ()
) -> list[SyntheticPlace | NeuronToolsError]:
    """Put synthetic processes on a machine.

    Args:
        client: the machine's; they end with this program.
        processes: what they are.
        known: pids of the synthetic processes that this program keeps; all others of it are removed, so that a
            request whose answer was lost can be repeated.

    Returns:
        For each its place, or the reason why it was refused.

    Raises:
        DaemonError, NoMachineError: the daemon refuses all of it or is gone.
    """
    places: list[SyntheticPlace | NeuronToolsError] = []
    for start in range(0, len(processes), MAX_DESCRIPTORS):
        kept = (*known, *(place.pid for place in places if isinstance(place, SyntheticPlace)))
        request = RegisterSyntheticRequest(tuple(processes[start : start + MAX_DESCRIPTORS]), kept)
        result, descriptors = client.request_with_descriptors(request, SyntheticOutcomes, _page_count)
        if _page_count(result) != len(descriptors):
            raise DaemonError("neurond sent no telemetry pages", "neurond logs may say why")
        page_fds = iter(descriptors)
        places += [
            error_from(outcome.error)
            if outcome.error is not None
            else SyntheticPlace(outcome.pid, outcome.start_ticks, outcome.cores or (), next(page_fds))
            for outcome in result.processes
        ]
    return places


def unregister_synthetic(client: Client, pids: Sequence[int]) -> None:
    """Take synthetic processes off a machine; those that are not there (any more) are ignored."""
    client.request(UnregisterSyntheticRequest(tuple(pids)), Empty)


def reserve_synthetic(client: Client, changes: Sequence[Reservation]) -> list[NeuronToolsError | None]:
    """Set the device memory that synthetic processes hold, whatever they held before.

    Returns:
        For each None, or why it holds what it held before: `OutOfDeviceMemoryError` when the device is full.
    """
    errors: list[NeuronToolsError | None] = []
    for start in range(0, len(changes), _RESERVATIONS_PER_CALL):
        request = ReserveSyntheticRequest(tuple(changes[start : start + _RESERVATIONS_PER_CALL]))
        outcomes = client.request(request, ReservationOutcomes).changes
        errors += [None if outcome.error is None else error_from(outcome.error) for outcome in outcomes]
    return errors


def _page_count(outcomes: SyntheticOutcomes) -> int:
    return sum(outcome.error is None for outcome in outcomes.processes)
