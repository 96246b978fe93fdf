"""Several machines as one source of neuron-top; every update says whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.errors import UsageError
from neurontools.sources.several import Several
from neurontools.tui.top_source import FollowedSource, Tick, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_MACHINES = 64


@dataclass(frozen=True, slots=True)
class Place:
    """A machine and where it is: a simulated one by its name, or the address of an exporter."""

    name: str
    machine: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class MachineUpdate:
    """What one of several machines told."""

    index: int
    update: Tick | Trouble


class SeveralSource:
    """Machines that are followed at once. Nothing is started; what is not there is waited for.

    Args:
        places: at least one.
        period_s: time between two ticks of each.
    """

    live = True

    def __init__(self, places: Sequence[Place], period_s: float) -> None:
        self.places = tuple(places)
        self.name = f"{len(places)} machines"
        self._feeds = [
            FollowedSource(place.url or "sim", period_s, place.machine, patient=True) for place in places
        ]
        self._several: Several[Tick | Trouble] = Several(self._feeds)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Where each machine's data comes from, for the title bar."""
        from neurontools.sources.scraping import host_of

        return tuple(
            f"remote:{host_of(place.url)}" if place.url else feed.name
            for place, feed in zip(self.places, self._feeds, strict=True)
        )

    def updates(self) -> Iterator[MachineUpdate]:
        """Yield what any of them tells."""
        for index, update in self._several.updates():
            yield MachineUpdate(index, update)

    def close(self) -> None:
        """End `updates` at its next step."""
        self._several.close()


def places_of(machines: Sequence[str], remotes: Sequence[str]) -> tuple[Place, ...]:
    """Return the places that a command line names.

    Args:
        machines: names of simulated machines.
        remotes: addresses of exporters, as `HOST=URL` or the URL alone.

    Raises:
        UsageError: a name or an address is none, or there twice, or there are too many.
    """
    from neurontools.machine.naming import check_name
    from neurontools.sources.scraping import host_of, is_url, scrape_url

    places = [Place(check_name(name), machine=name) for name in machines]
    for text in remotes:
        name, given, url = text.partition("=")
        if is_url(text) or not given:
            name, url = "", text
        url = scrape_url(url)
        places.append(Place(name or host_of(url), url=url))
    names = [place.name for place in places]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two machines are called {name!r}", "name each once; --remote NAME=URL gives a name"
            )
    if len(places) > MOST_MACHINES:
        raise UsageError(f"{len(places)} machines are too many", f"at most {MOST_MACHINES}")
    return tuple(places)
