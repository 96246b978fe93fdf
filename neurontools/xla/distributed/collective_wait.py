"""One worker's wait for the others of its group, and the errors when one of them has ended or does not answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.base.interrupts import is_of_handler
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from neurontools.xla.distributed.worker_roster import Ranks, WorkerProcess, WorkerRoster

_LOOK_S = 0.2
_NOTICE_S = 5.0
_POLL_S = 0.02


class ClosedConnectionError(ConnectionError):
    """The other worker has closed a connection."""

    def __init__(self) -> None:
        super().__init__("it has closed its connection")


class CollectiveWait:
    """One wait for the members of a group; creates the error that names the missing workers.

    Args:
        roster: the workers, as this worker knows them.
        ranks: the ranks of the group.
        what: the name of the collective.
        timeout: how long to wait; None for the timeout of the run.
    """

    def __init__(
        self, roster: WorkerRoster, ranks: Ranks, what: str, timeout: timedelta | None = None
    ) -> None:
        self._roster = roster
        self._timeout = timeout or roster.timeout
        self._ranks = ranks
        self._what = what
        self._start_s = time.monotonic()
        self._looked_s = self._start_s
        self._missing: list[WorkerProcess] = []

    def again(self) -> CollectiveWait:
        """Return the same wait from now on."""
        return CollectiveWait(self._roster, self._ranks, self._what, self._timeout)

    def elapsed_s(self) -> float:
        """Return the duration of the wait so far."""
        return time.monotonic() - self._start_s

    def check(self, takes_part: Callable[[int], bool]) -> None:
        """Check that the others run and that time is left; `takes_part` tells if a position has answered.

        Raises:
            NrtError: NRT_EXEC_HW_ERR_COLLECTIVES when a worker has ended, NRT_TIMEOUT when the timeout is over.
        """
        self.check_ended()
        self.check_time(takes_part)

    def check_ended(self) -> None:
        """Check that the others run."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_S:
            self._looked_s = now_s
            ended = self._ended()
            if ended and ended == self._missing:  # what a worker sent before its end may still arrive
                raise self._lost(ended)
            self._missing = ended

    def check_time(self, takes_part: Callable[[int], bool]) -> None:
        """Check that time is left."""
        limit_s = self._timeout.total_seconds()
        if self.elapsed_s() > limit_s:
            absent = [rank for position, rank in enumerate(self._ranks) if not takes_part(position)]
            names = ", ".join(self._name(rank) for rank in self._others(absent) or self._others(self._ranks))
            raise NrtError(
                "nrt_execute",
                NrtStatus.NRT_TIMEOUT,
                "see where it is with `py-spy dump --pid PID`, or raise the timeout of its process group",
                detail=f"{self}: no answer in {limit_s:g} s from {names}",
            )

    def failure(self, error: Exception, position: int | None = None) -> NrtError:
        """Return the error for a broken connection, to the member at `position` if that is known.

        Names workers that have ended; the end of a process may be visible a little later than that of its connections.
        Connections last as long as their processes: for a worker whose process is not visible, theirs is the end.
        """
        if is_of_handler(error):
            raise error
        deadline_s = time.monotonic() + _NOTICE_S
        while time.monotonic() < deadline_s:
            ended = self._ended()
            if ended:
                return self._lost(ended)
            time.sleep(_POLL_S)
        peer = None if position is None else self._known_peer(self._ranks[position])
        if isinstance(error, ClosedConnectionError | ConnectionResetError | BrokenPipeError):
            if peer is not None and not peer.is_visible():
                return self._lost([peer])
            error = ClosedConnectionError()
        text = (getattr(error, "strerror", None) or str(error)).splitlines()[0]
        whose = "" if position is None else f"{peer or f'rank {self._ranks[position]}'}: "
        return NrtError(
            "nrt_execute",
            NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES,
            "see the first error among the output of the other workers",
            detail=f"{self}: {whose}{text}",
        )

    def mismatch(self, position: int, other: str) -> NrtError:
        """Return the error for a member that runs another collective."""
        return NrtError(
            "nrt_execute",
            NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES,
            "all workers have to run the same collectives in the same order",
            detail=f"{self}: {self._name(self._ranks[position])} runs {other}",
        )

    def __str__(self) -> str:
        return f"{self._what} of ranks {_listed(self._ranks)}"

    def _others(self, ranks: list[int] | Ranks) -> list[int]:
        return [rank for rank in ranks if rank != self._roster.rank]

    def _ended(self) -> list[WorkerProcess]:
        peers = map(self._known_peer, self._others(self._ranks))
        return [peer for peer in peers if peer is not None and peer.has_ended()]

    def _known_peer(self, rank: int) -> WorkerProcess | None:
        try:
            return self._roster.peer(rank)
        except ConnectionError as error:
            if is_of_handler(error):
                raise
            return None  # the store ended with its process

    def _lost(self, ended: list[WorkerProcess]) -> NrtError:
        verb = "has" if len(ended) == 1 else "have"
        return NrtError(
            "nrt_execute",
            NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES,
            "see the output of that worker",
            detail=f"{self}: {', '.join(map(str, ended))} {verb} ended",
        )

    def _name(self, rank: int) -> str:
        return str(self._known_peer(rank) or f"rank {rank}")


def _listed(ranks: Ranks) -> str:
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
