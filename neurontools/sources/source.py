"""The interface of all sources of snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from neurontools.errors import NoMachineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from neurontools.machine.snapshot import Snapshot


class NoDriverError(NoMachineError):
    """The host has no Neuron driver, or no device."""


class Source(Protocol):
    """A machine: simulated, real, remote or recorded.

    `name` is a text for title bars: "sim:default", "real", "file:rec.jsonl". `notices` are lines for
    the user, such as what is missing; there may be more after each snapshot. `live` is False for a recording: its
    processes do not run now, and `watch` takes no time but the given period.
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
        """Lines for the user about the data so far."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the current state of the machine; of a recording the last one.

        Raises:
            NeuronToolsError: there is no data (any more).
        """
        ...

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now and then every `period_s` seconds; ends where a recording ends.

        Raises:
            NeuronToolsError: there is no data (any more).
        """
        ...

    def close(self) -> None:
        """Close the source. A second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
