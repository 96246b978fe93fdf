"""The communicator of one rank of a process: its groups exchange tensors in a meeting, not with other processes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from neurontools.xla.distributed.messages import MessageExchange
from neurontools.xla.distributed.reductions import REDUCE_FUNCTIONS, scale_
from neurontools.xla.distributed.worker_group import Communicator, WorkerGroup, default_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from neurontools.xla.distributed.worker_roster import Ranks
    from neurontools.xla.multicore.meeting import RankMeeting


class RankCommunicator(Communicator):
    """The communicator of a rank.

    Args:
        meeting: the meeting of all ranks.
        rank: the rank.
        size: number of ranks.
    """

    def __init__(self, meeting: RankMeeting, rank: int, size: int) -> None:
        super().__init__(None, rank, size, default_timeout())
        self.meeting = meeting
        self.messages = _RankMessages(self)

    def _make_group(self, ranks: Ranks, mark: str) -> WorkerGroup:
        return _RankGroup(self, ranks, mark)


class _RankMessages(MessageExchange):
    def __init__(self, communicator: RankCommunicator) -> None:
        super().__init__(communicator)
        self._meeting, self._rank = communicator.meeting, communicator.rank

    def send(self, tensor: torch.Tensor, target: int, tag: int) -> None:
        """Send a tensor to a rank."""
        self._meeting.send((self._rank, target, tag), tensor)

    def receive(self, tensor: torch.Tensor, source: int, tag: int, timeout: timedelta | None = None) -> None:
        """Receive a tensor from a rank."""
        del timeout
        self._meeting.receive((source, self._rank, tag), tensor)


class _RankGroup(WorkerGroup):
    def __init__(self, communicator: RankCommunicator, ranks: Ranks, mark: str) -> None:
        super().__init__(communicator, ranks, mark)
        self._ranks_exchange = _MeetingExchange(communicator.meeting, (ranks, mark), self.position, self.size)

    def _exchange(self) -> Any:
        return self._ranks_exchange


class _MeetingExchange:
    """A `SharedExchange` of ranks in one process; `waiting` is not used, as a rank that fails tells the meeting."""

    def __init__(self, meeting: RankMeeting, name: tuple[Ranks, str], position: int, size: int) -> None:
        self._meeting = meeting
        self._name = name
        self._position = position
        self._size = size
        self._sequence = 0

    def all_reduce(
        self, tensors: Sequence[torch.Tensor], reduce_type: str, scale: float, waiting: Any
    ) -> None:
        """Reduce tensors in place, in the order of the ranks, and multiply them by `scale`."""
        del waiting
        reduced = self._join(
            list(tensors),
            lambda given: [_reduce(column, reduce_type, scale) for column in zip(*given, strict=True)],
        )
        torch._foreach_copy_(list(tensors), reduced)

    def reduce_scatter(
        self, output: torch.Tensor, rows: torch.Tensor, reduce_type: str, scale: float, waiting: Any
    ) -> None:
        """Reduce matrices with one row per rank, and copy the row of this rank."""
        del waiting
        output.copy_(self._join(rows, lambda given: _reduce(given, reduce_type, scale))[self._position])

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor, waiting: Any) -> None:
        """Copy the tensors of all ranks into the rows of `output`."""
        del waiting
        output.copy_(self._join(tensor, torch.stack))

    def all_to_all(self, output: torch.Tensor, rows: torch.Tensor, waiting: Any) -> None:
        """Send each rank its row of a matrix, and copy the rows received."""
        del waiting
        output.copy_(self._join(rows, torch.stack)[:, self._position])

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int, waiting: Any) -> None:
        """Copy tensors from the rank at a position to all others."""
        del waiting
        sent = self._join(list(tensors), lambda given: [tensor.clone() for tensor in given[root]])
        torch._foreach_copy_(list(tensors), sent)

    def barrier(self, waiting: Any) -> None:
        """Wait for all ranks."""
        del waiting
        self._join(None, len)

    def _join(self, own: Any, combine: Callable[[Sequence[Any]], Any]) -> Any:
        self._sequence += 1
        key = (*self._name, self._sequence)
        return self._meeting.join(key, self._position, self._size, own, combine)


def _reduce(tensors: Sequence[torch.Tensor], reduce_type: str, scale: float) -> torch.Tensor:
    reduced = functools.reduce(REDUCE_FUNCTIONS[reduce_type], tensors)
    scale_(reduced, scale)
    return reduced
