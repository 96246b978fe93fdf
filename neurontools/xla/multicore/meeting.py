"""Where the ranks of one process exchange tensors: each waits until all of its group have given theirs.

The last of them computes the result, from the tensors in the order of the ranks, so it does not depend on time.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

T = TypeVar("T")


class RankMeeting(Protocol):
    """How the members of groups exchange tensors."""

    def join(
        self, key: Hashable, position: int, size: int, own: Any, combine: Callable[[Sequence[Any]], T]
    ) -> T:
        """Give a member's value to a collective; return what `combine` makes of the values of all."""

    def send(self, key: Hashable, tensor: torch.Tensor) -> None:
        """Send a tensor to the rank that waits for it under a key."""

    def receive(self, key: Hashable, output: torch.Tensor) -> None:
        """Copy a tensor that was sent under a key."""


class RecordedMeeting:
    """The meeting while rank 0 is recorded: the others would give what it gives, and send nothing."""

    def join(
        self, key: Hashable, position: int, size: int, own: Any, combine: Callable[[Sequence[Any]], T]
    ) -> T:
        """Return what `combine` makes of the member's own value, given by all."""
        del key, position
        return combine([own] * size)

    def send(self, key: Hashable, tensor: torch.Tensor) -> None:
        """Do nothing."""

    def receive(self, key: Hashable, output: torch.Tensor) -> None:
        """Do nothing: the contents are not needed."""


class _Gathering:
    def __init__(self, size: int) -> None:
        self.given: dict[int, Any] = {}
        self.result: Any = None
        self.has_result = False
        self.remaining = size


class ThreadMeeting:
    """The meeting of one execution: its ranks are threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[Hashable, _Gathering] = {}
        self._sent: dict[Hashable, deque[torch.Tensor]] = defaultdict(deque)
        self._failed = -1

    def fail(self, rank: int) -> None:
        """Let all that wait for a rank fail, now and later."""
        with self._changed:
            self._failed = rank
            self._changed.notify_all()

    def join(
        self, key: Hashable, position: int, size: int, own: Any, combine: Callable[[Sequence[Any]], T]
    ) -> T:
        """Give a member's value to a collective; return what `combine` makes of the values of all.

        Raises:
            RankError: another rank has failed.
        """
        with self._changed:
            gathering = self._open.setdefault(key, _Gathering(size))
            gathering.given[position] = own
            if len(gathering.given) == size:
                gathering.result = combine([gathering.given[member] for member in range(size)])
                gathering.has_result = True
                self._changed.notify_all()
            self._wait(lambda: gathering.has_result)
            gathering.remaining -= 1
            if not gathering.remaining:
                del self._open[key]
            result: T = gathering.result
            return result

    def send(self, key: Hashable, tensor: torch.Tensor) -> None:
        """Send a copy of a tensor to the rank that waits for it under a key."""
        with self._changed:
            self._sent[key].append(tensor.clone())
            self._changed.notify_all()

    def receive(self, key: Hashable, output: torch.Tensor) -> None:
        """Copy a tensor that was sent under a key.

        Raises:
            RankError: another rank has failed.
        """
        with self._changed:
            self._wait(lambda: bool(self._sent[key]))
            output.copy_(self._sent[key].popleft())

    def _wait(self, is_done: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: is_done() or self._failed >= 0)
        if not is_done():
            raise RankError(self._failed)


class RankError(NrtError):
    """A rank cannot go on, because another rank has failed."""

    def __init__(self, rank: int) -> None:
        super().__init__(
            "nrt_execute",
            NrtStatus.NRT_EXEC_COMPLETED_WITH_ERR,
            detail=f"rank {rank} of the model has failed",
        )
