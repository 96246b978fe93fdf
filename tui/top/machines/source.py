"""Several machines as one source of neuron-top; every update names its machine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.errors import UsageError
from neurontools.sources.retrying import MergedFeeds
from neurontools.tui.top.source import FollowedSource, RecordedSource, SourceProblem, TimedSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.dashboard.recorder import SnapshotRecorder

MOST_MACHINES = 64


@dataclass(frozen=True, slots=True)
class MachineAddress:
    """The address of a machine: the name of a simulated one, or the URL of an exporter."""

    name: str
    machine: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class MachineUpdate:
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

    made: list[SnapshotRecorder] = []
    try:
        for place in places:
            made += [SnapshotRecorder(recording_of(record, place.name))]
    except BaseException:
        for recorder in made:
            recorder.close()
        raise
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
