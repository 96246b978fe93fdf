"""Data sources of neuron-top, of one machine or of several, and the thread that reads one from the program's start on."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from neurontools.dashboard.snapshot_history import TimedSnapshot
from neurontools.errors import UsageError
from neurontools.machine import host
from neurontools.sources.retrying import MergedFeeds, RetryingSource, SourceProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.dashboard.recorder import SnapshotRecorder
    from neurontools.machine.snapshot import Snapshot


__all__ = ["SourceProblem", "TimedSnapshot"]

MOST_MACHINES = 64
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


class MachineAddress(Struct, frozen=True):
    """The address of a machine: the name of a simulated one, or the URL of an exporter."""

    name: str
    machine: str | None = None
    url: str | None = None


class MachineUpdate(Struct, frozen=True):
    """An update of one of several machines."""

    index: int
    update: TimedSnapshot | SourceProblem


class SeveralSource:
    """Follows several machines at once. Starts none; waits for missing ones.

    Args:
        places: at least one.
        period_s: time between two snapshots of each.
        record: the recording, see `recording_of`; None for none.

    Raises:
        NeuronToolsError: a recording can't be made.
    """

    live = True

    def __init__(self, places: Sequence[MachineAddress], period_s: float, record: str | None = None) -> None:
        self.places = tuple(places)
        self.name = f"{len(places)} machines"
        recorders = _recorders(places, record) if record else [None] * len(places)
        followed = [
            FollowedSource(place.url or "sim", period_s, place.machine, patient=True) for place in places
        ]
        self._feeds = [
            feed if recorder is None else RecordedSource(feed, recorder)
            for feed, recorder in zip(followed, recorders, strict=True)
        ]
        self._several: MergedFeeds[TimedSnapshot | SourceProblem] = MergedFeeds(self._feeds)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Where each machine's data comes from, for the title bar."""
        from neurontools.sources.remote import host_of

        return tuple(
            f"remote:{host_of(place.url)}" if place.url else feed.name
            for place, feed in zip(self.places, self._feeds, strict=True)
        )

    def updates(self) -> Iterator[MachineUpdate]:
        """Yield the updates of all machines."""
        for index, update in self._several.updates():
            yield MachineUpdate(index, update)

    def close(self) -> None:
        """End `updates` at its next step."""
        self._several.close()


def recording_of(record: str, name: str) -> str:
    """Return the recording of one machine: `run.jsonl` becomes `run.NAME.jsonl`, with unsafe characters as `_`."""
    base, ending = os.path.splitext(record)
    return f"{base}.{re.sub(r'[^A-Za-z0-9._-]', '_', name)}{ending}"


def _recorders(places: Sequence[MachineAddress], record: str) -> list[SnapshotRecorder]:
    from neurontools.dashboard.recorder import SnapshotRecorder

    with ExitStack() as stack:
        made = [
            stack.enter_context(closing(SnapshotRecorder(recording_of(record, place.name))))
            for place in places
        ]
        stack.pop_all()
    return made


def places_of(machines: Sequence[str], remotes: Sequence[str]) -> tuple[MachineAddress, ...]:
    """Return the machines that a command line names.

    Args:
        machines: names of simulated machines.
        remotes: addresses of exporters, as `HOST=URL` or the URL alone.

    Raises:
        UsageError: a name or address is invalid or repeated, or there are too many.
    """
    from neurontools.machine.machine_names import check_name
    from neurontools.sources.remote import host_of, is_url, scrape_url

    places = [MachineAddress(check_name(name), machine=name) for name in machines]
    for text in remotes:
        name, given, url = text.partition("=")
        if is_url(text) or not given:
            name, url = "", text
        url = scrape_url(url)
        places.append(MachineAddress(name or host_of(url), url=url))
    names = [place.name for place in places]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two machines are named {name!r}", "use distinct names; --remote NAME=URL sets one"
            )
    if len(places) > MOST_MACHINES:
        raise UsageError(f"{len(places)} machines are too many", f"at most {MOST_MACHINES}")
    return tuple(places)


class SourceEnd(NamedTuple):
    """The end of a source; `error` is the bug that ended it, None at the end of a recording."""

    error: Exception | None = None


Item: TypeAlias = "Update | MachineUpdate | SourceEnd"


class UpdateReader:
    """The updates of a source, and its end.

    Args:
        source: read once `start` or `follow` is called.
    """

    def __init__(self, source: UpdateSource | SeveralSource) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._pass_on: Callable[[Item], None] = self._keep
        self._is_started = False

    def start(self) -> None:
        """Begin to read, once."""
        if not self._is_started:
            self._is_started = True
            # Not a Textual worker: the interpreter would wait for a thread blocked in a read.
            threading.Thread(target=self._read, name="neuron-top source", daemon=True).start()

    def first(self, seconds: float) -> Item | None:
        """Return the first item, which stays for `follow`; None if none comes in time.

        Args:
            seconds: how long to wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, seconds)
            return self._waiting[0] if self._waiting else None

    def follow(self, pass_on: Callable[[Item], None]) -> Sequence[Item]:
        """Return the items so far; later ones are passed on, in the reading thread."""
        with self._changed:
            self._pass_on = pass_on
            waiting = tuple(self._waiting)
            self._waiting.clear()
        self.start()
        return waiting

    def _keep(self, item: Item) -> None:
        self._waiting.append(item)
        self._changed.notify_all()

    def _take(self, item: Item) -> None:
        with self._changed:
            self._pass_on(item)

    def _read(self) -> None:
        try:
            for update in self._source.updates():
                self._take(update)
        except Exception as error:  # noqa: BLE001  a bug in a source must end the app, not only this thread
            self._take(SourceEnd(error))
        else:
            self._take(SourceEnd())
