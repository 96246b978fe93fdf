"""What every source of snapshots offers. Whoever shows a machine sees snapshots and nothing of where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from neurontools.machine.snapshot import Snapshot


class Source(Protocol):
    """A machine that can be looked at: simulated, real, or recorded.

    `name` is a text for title bars: "sim:default", "real", "file:rec.jsonl". `notices` are sentences that a user
    should read, such as what is missing; there may be more after each snapshot. `live` is False for a recording: its
    processes are none of this moment, and `watch` takes no time but the period that it is given.
    """

    @property
    def live(self) -> bool:
        """Whether the machine goes on by itself."""
        ...

    @property
    def name(self) -> str:
        """The text for title bars."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know about the data so far."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the machine at this moment; of a recording its last moment.

        Raises:
            NeuronToolsError: there is nothing to tell (any more).
        """
        ...

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now and then every `period_s` seconds; ends where a recording ends.

        Raises:
            NeuronToolsError: there is nothing to tell (any more).
        """
        ...

    def close(self) -> None:
        """Give back what the source holds. A second time does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
