"""Data sources of neuron-top: endless iterators of snapshots and troubles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from neurontools.dashboard.snapshot_history import TimedSnapshot
from neurontools.machine import host
from neurontools.sources.retrying import RetryingSource, SourceProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.dashboard.recorder import SnapshotRecorder
    from neurontools.machine.snapshot import Snapshot

__all__ = [
    "FixedSource",
    "FollowedSource",
    "RecordedSource",
    "SourceProblem",
    "TimedSnapshot",
    "Update",
    "UpdateSource",
    "timed_snapshot",
]

_FIRST_INTERVAL_S = 0.25


Update = TimedSnapshot | SourceProblem


class UpdateSource(Protocol):
    """A source of updates; `name` is for the title bar, "" for none."""

    name: str

    def updates(self) -> Iterator[Update]:
        """Yield updates; may block; ends when closed or at the end of a recording."""
        ...

    def close(self) -> None:
        """End `updates` soon; may be called from another thread."""
        ...


class FollowedSource:
    """A simulated machine, real host or recording, followed through failures.

    A crashed daemon is replaced; a stopped daemon is waited for.

    Args:
        name: of the source, as `neurontools.sources.open_source` takes it.
        period_s: time between two snapshots.
        machine: name of the simulated machine, None for the default.
        on_notice: called with a message when a machine was started.
        patient: start nothing, and wait for a source that cannot be opened yet.

    Raises:
        NeuronToolsError: the source can't be opened.
    """

    def __init__(
        self,
        name: str,
        period_s: float,
        machine: str | None = None,
        on_notice: Callable[[str], None] | None = None,
        *,
        patient: bool = False,
    ) -> None:
        self._follower = RetryingSource(
            name,
            period_s,
            machine=machine,
            looker="neuron-top",
            early_s=_FIRST_INTERVAL_S,
            on_notice=on_notice,
            patient=patient,
        )
        self.name = self._follower.name
        self.live = self._follower.live

    def updates(self) -> Iterator[Update]:
        """Yield a snapshot each period, or each line of a recording; at its end a trouble says why."""
        for update in self._follower.updates():
            yield update if isinstance(update, SourceProblem) else timed_snapshot(update)
        if not self.live:
            yield SourceProblem("; ".join(("end of the recording", *self._follower.notices)), is_outage=False)

    def close(self) -> None:
        """End `updates` at its next step."""
        self._follower.close()


def timed_snapshot(snapshot: Snapshot) -> TimedSnapshot:
    """Return a snapshot with the CPU times of this host, if it is live and of this host."""
    is_here = snapshot.source not in {"recording", "remote"}
    return TimedSnapshot(snapshot, host.sample_for(snapshot) if is_here else None)


class FixedSource:
    """Fixed updates, yielded at once: for tests and screenshots.

    Args:
        updates: to yield.
        name: for the title bar.
    """

    def __init__(self, *updates: Update, name: str = "") -> None:
        self._updates = updates
        self.name = name

    def updates(self) -> Iterator[Update]:
        """Yield them."""
        yield from self._updates

    def close(self) -> None:
        """Nothing to close."""


class RecordedSource:
    """A source whose snapshots are also written into a recording.

    Args:
        source: the source; closed with this.
        recorder: what writes; closed with this, and when `updates` ends.
    """

    def __init__(self, source: UpdateSource, recorder: SnapshotRecorder) -> None:
        self._source = source
        self._recorder = recorder
        self.name = f"{source.name} recording"

    def updates(self) -> Iterator[Update]:
        """Yield the source's updates, and a trouble after each snapshot once recording has failed."""
        try:
            for update in self._source.updates():
                yield update
                if isinstance(update, TimedSnapshot):
                    self._recorder.take(update.snapshot)
                    if self._recorder.problem:
                        yield SourceProblem(self._recorder.problem, is_outage=False)
        finally:
            self._recorder.close()

    def close(self) -> None:
        """Close the source and the recording."""
        self._source.close()
        self._recorder.close()
