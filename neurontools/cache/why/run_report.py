"""Why a recorded run compiled: for every miss the nearest earlier entry, what differs, and what the journal knows."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.collector import collector_paused
from neurontools.cache.entry_files import State
from neurontools.cache.events import CacheEvent, EventKind, Events
from neurontools.cache.tables import counted
from neurontools.cache.why.cause import Cause, CauseName, Confidence
from neurontools.cache.why.causes import causes_of
from neurontools.cache.why.compare import Comparison, compare
from neurontools.cache.why.journal import Journal
from neurontools.cache.why.nearest import Neighbourhood, unread_words
from neurontools.cache.why.series import Miss, Series, series_of
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.cache.why.entry_facts import EntryFacts

    Progress = Callable[[int, int], None]

MOST_COMPARED = 200
MOST_OPERATORS = 500_000
_SHORTEST_NAME = 3
_PROFILE = re.compile(r"_pid_(\d+)(?:_\d+)?$")


class NoSuchRunError(NeuronToolsError):
    """No run of that name is recorded."""


@dataclass(frozen=True, slots=True)
class MissReport:
    """One compile of a run. `comparison` is None when nothing is near; `facts` are None when the entry is gone."""

    event: CacheEvent
    facts: EntryFacts | None
    comparison: Comparison | None
    likeness: float
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """Why a run compiled. `series` are causes that several of its misses show together."""

    root: str
    run: str
    started_unix_s: float
    hits: int
    compiled_s: float
    misses: tuple[MissReport, ...]
    series: tuple[Series, ...]
    left_out: int


def explain_last(root: str, progress: Progress | None = None) -> RunReport:
    """Return why the last recorded run compiled.

    Args:
        root: the cache.
        progress: is told how many compiles of how many are explained.

    Raises:
        NoSuchRunError: no run is recorded.
    """
    events = tuple(Events(root).read())
    if not events:
        raise NoSuchRunError(
            f"no run is recorded for the cache {root}",
            "'neuron-cache path' says which cache is meant; runs of this user are recorded by neuron-run",
        )
    return _explain(root, events, events[-1].run, progress)


def explain_run(root: str, name: str, progress: Progress | None = None) -> RunReport:
    """Return why a run compiled.

    Args:
        root: the cache.
        name: its name as `stats --runs` prints it, the start of it, its process id, or the directory of its profile.
        progress: is told how many compiles of how many are explained.

    Raises:
        NoSuchRunError: no run is called that, or several are.
    """
    events = tuple(Events(root).read())
    names = dict.fromkeys(event.run for event in events)
    if os.path.isdir(name):
        name = _profiled_process(name)
    fits = [run for run in names if run == name]
    # A process id comes back some day; the newest run is meant.
    fits = fits or [run for run in names if run.partition(":")[0] == name][-1:]
    fits = fits or [run for run in names if len(name) >= _SHORTEST_NAME and run.startswith(name)]
    if len(fits) != 1:
        what = f"{len(fits)} runs are called {name!a}" if fits else f"no run {name!a} is recorded"
        raise NoSuchRunError(
            f"{what} for the cache {root}", "'neuron-cache stats --runs' lists them; --last is the last"
        )
    return _explain(root, events, fits[0], progress)


def _profiled_process(directory: str) -> str:
    """Return the process id that the name of a profile's directory, or of one in it, ends with."""
    for name in (os.path.basename(os.path.abspath(directory)), *sorted(os.listdir(directory))):
        found = _PROFILE.search(name)
        if found:
            return found[1]
    raise NoSuchRunError(
        f"{directory} is no profile of a run", "'neuron-cache stats --runs' lists the runs that are recorded"
    )


@collector_paused()
def _explain(root: str, events: tuple[CacheEvent, ...], run: str, progress: Progress | None) -> RunReport:
    own = [event for event in events if event.run == run]
    wanted = [event for event in own if event.kind in {EventKind.MISS, EventKind.FAILURE, EventKind.REPLAY}]
    history = _History(root, events, run)
    reports: list[MissReport] = []
    operators = 0
    for event in wanted[:MOST_COMPARED]:
        if operators > MOST_OPERATORS:
            break
        if progress is not None:
            progress(len(reports), len(wanted))
        reports.append(history.report(event))
        facts = reports[-1].facts
        operators += len(facts.graph.operations) if facts is not None and facts.graph is not None else 0
    misses = [
        Miss(report.event.module, report.facts.graph)
        for report in reports
        if report.facts is not None and report.facts.graph is not None
    ]
    known = [
        report.comparison.old.graph
        for report in reports
        if report.comparison is not None and report.comparison.old.graph is not None
    ]
    return RunReport(
        root=root,
        run=run,
        started_unix_s=own[0].unix_s,
        hits=sum(event.kind is EventKind.HIT for event in own),
        compiled_s=sum(event.seconds for event in own if event.kind is EventKind.MISS),
        misses=tuple(reports),
        series=(*_shared(reports), *series_of(misses, known)),
        left_out=len(wanted) - len(reports),
    )


class _History:
    """What came before each miss of a run."""

    def __init__(self, root: str, events: tuple[CacheEvent, ...], run: str) -> None:
        self._journal = Journal(root, events, run)
        self._own = frozenset(event.module for event in events if event.run == run)
        self._around = Neighbourhood(root, self._own)

    def report(self, event: CacheEvent) -> MissReport:
        around = self._around
        place = around.place_of_module(event.module)
        facts = None if place is None else around.facts(place)
        upgraded = around.has_other_compiler(event.module)
        is_done = facts is not None and facts.entry.state is State.DONE
        made_unix_s = facts.entry.made_unix_s if facts is not None and is_done else None
        told = () if upgraded else tuple(self._journal.causes(event, made_unix_s))
        if told or facts is None:
            return MissReport(event, facts, None, 0.0, told or (_gone(event),))
        # The graph is stored before the compile that the event tells of, so that later entries are younger.
        near = around.nearest(facts, made_until_unix_s=event.unix_s)
        if near is None:
            return MissReport(event, facts, None, 0.0, (_first(facts, around.unread_count()),))
        comparison = compare(near.facts, facts)
        causes = causes_of(comparison, together=near.facts.entry.module in self._own)
        return MissReport(event, facts, comparison, near.likeness, causes)


def _shared(reports: list[MissReport]) -> Iterator[Series]:
    """Yield what the journal tells of several compiles alike, such as a cache that was deleted."""
    told: dict[CauseName, list[MissReport]] = {}
    for report in reports:
        if report.comparison is None and report.causes[0].name is not CauseName.FIRST:
            told.setdefault(report.causes[0].name, []).append(report)
    for name, alike in told.items():
        if len(alike) > 1:
            first = alike[0].causes[0]
            text = f"{len(alike)} of {len(reports)} compiles; of the first: {first.text}"
            modules = tuple(dict.fromkeys(report.event.module for report in alike))
            yield Series(Cause(name, first.confidence, text, first.advice), modules)


def _first(facts: EntryFacts, unread: int) -> Cause:
    if facts.graph is None:
        return Cause(
            CauseName.UNKNOWN,
            Confidence.POSSIBLE,
            f"its graph cannot be read, so it cannot be compared: {'; '.join(facts.unread)}",
        )
    size = counted(len(facts.graph.operations), "operator", "operators")
    return Cause(
        CauseName.FIRST,
        Confidence.LIKELY if unread else Confidence.CERTAIN,
        f"nothing in the cache at that time was like this graph ({size}): its first compile"
        + (f"; {unread_words(unread)}" if unread else ""),
        "none needed; 'neuron_parallel_compile' or 'neuron-cache import' can fill a cache before a run",
    )


def _gone(event: CacheEvent) -> Cause:
    return Cause(
        CauseName.UNCACHED,
        Confidence.POSSIBLE,
        f"{event.module} is not in the cache now, so its graph cannot be compared: it was not stored, or removed since",
        "look for --no_cache, a full disk or a cache that cannot be written to",
    )
