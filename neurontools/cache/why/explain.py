"""`neuron-cache why` as a library: why a run compiled, why an entry was compiled, why two entries differ."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import paths
from neurontools.base.text import plural
from neurontools.base.units import format_time
from neurontools.cache.entry_files import State
from neurontools.cache.events import Events, LookupEvent, LookupEventKind, read_removals, run_name
from neurontools.cache.selection import NoSuchEntryError, find_entries
from neurontools.cache.walk import parse_entry_path
from neurontools.cache.why.causes import (
    Cause,
    CauseName,
    CompiledGraph,
    SharedCause,
    find_causes,
    find_shared_causes,
    make_cause,
)
from neurontools.cache.why.compare import EntryComparison, EntryFacts, compare, read_facts
from neurontools.cache.why.nearest import Neighbourhood, format_unread, likeness
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.cache.walk import EntryRef

    Progress = Callable[[int, int], None]

MAX_COMPARED = 200
MAX_OPERATORS = 500_000
_MIN_NAME = 3
_MAX_DEPTH = 5
_PROFILE = re.compile(r"_pid_(\d+)(?:_\d+)?$")

# Times in a cache on another host's disk are that host's.
_CLOCK_SKEW_S = 2.0
_LOOKUPS = frozenset({LookupEventKind.MISS, LookupEventKind.HIT})


class NoSuchRunError(NeuronToolsError):
    """No run of that name is recorded."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an entry was compiled.

    Args:
        facts: the entry, None if the cache does not have it now.
        causes: the most certain one first.
        comparison: with the nearest entry, None if nothing is near.
        likeness: share of operators in common with the nearest entry, 0..1.
        event: the compile, for an entry of a run.
        others: number of other entries in the cache.
        unread: how many of the candidates have a graph that cannot be read.
    """

    facts: EntryFacts | None
    causes: tuple[Cause, ...] = ()
    comparison: EntryComparison | None = None
    likeness: float = 0.0
    event: LookupEvent | None = None
    others: int = 0
    unread: int = 0


@dataclass(frozen=True, slots=True)
class RunExplanation:
    """Why a run compiled. `shared` are causes that several of its compiles show together."""

    root: str
    run: str
    started_unix_s: float
    hits: int
    compiled_s: float
    misses: tuple[Explanation, ...]
    shared: tuple[SharedCause, ...]
    left_out: int


def explain_pair(root: str, old: str, new: str, *, progress: Progress | None = None) -> Explanation:
    """Return why two entries are not the same entry.

    Args:
        root: the cache in which names are looked up; paths may be in other caches.
        old: the entry that might have been hit.
        new: the entry to explain.
        progress: called with the number of graphs read and of all.

    Raises:
        NoSuchEntryError: a name matches no entry, or several.
    """
    facts = []
    for name in (old, new):
        facts.append(read_facts(*_find_place(root, name)))
        if progress is not None:
            progress(len(facts), 2)
    return _explain_comparison(compare(*facts))


def explain_entry(root: str, name: str, progress: Progress | None = None) -> Explanation:
    """Return why an entry was compiled instead of reusing its nearest neighbour in the cache.

    Args:
        root: the cache in which the name is looked up; a path may be in another cache.
        name: the entry.
        progress: called with the number of graphs read and of all.

    Raises:
        NoSuchEntryError: the name matches no entry, or several.
    """
    target_root, place = _find_place(root, name)
    return explain_place(Neighbourhood(target_root), place, progress)


def explain_place(
    neighbourhood: Neighbourhood, place: EntryRef, progress: Progress | None = None
) -> Explanation:
    """Return why an entry of a neighbourhood was compiled; see `explain_entry`.

    Raises:
        NoSuchEntryError: it is gone.
    """
    target = neighbourhood.facts(place)
    if target is None:
        raise NoSuchEntryError(f"the entry {place.path} is gone or cannot be read")
    # A later entry cannot have been reused, but shows what differs if no earlier one is near.
    stored_unix_s = neighbourhood.stored_unix_s(place)
    nearest = neighbourhood.nearest(target, stored_unix_s, progress) or neighbourhood.nearest(target)
    if nearest is None:
        others = len(neighbourhood.places) - 1
        return Explanation(target, others=others, unread=neighbourhood.unread_count())
    return _explain_comparison(compare(nearest.facts, target))


def _explain_comparison(comparison: EntryComparison) -> Explanation:
    share = likeness(comparison.old, comparison.new)
    return Explanation(comparison.new, find_causes(comparison), comparison, share)


def _find_place(root: str, name: str) -> tuple[str, EntryRef]:
    """Return an entry's root and place; a path may be in another cache, such as a mounted disk."""
    path = os.path.abspath(name)
    is_inside = path.startswith(os.path.abspath(root) + "/")
    if "/" not in name or "://" in name or is_inside or not os.path.exists(path):
        return root, find_entries(root, [name])[0]
    above = path
    for _ in range(_MAX_DEPTH):
        above = os.path.dirname(above)
        place = parse_entry_path(above, path)
        if place is not None:
            return above, place
    raise NeuronToolsError(
        f"{name} is not an entry of a compile cache", "'neuron-cache ls -q' prints paths of entries"
    )


def explain_last(root: str, progress: Progress | None = None) -> RunExplanation:
    """Return why the last recorded run compiled.

    Raises:
        NoSuchRunError: no run is recorded.
    """
    events = tuple(Events(root).read())
    if not events:
        raise NoSuchRunError(
            f"no run is recorded for the cache {root}",
            "'neuron-cache stats --path' prints the cache in use; neuron-run records runs of this user",
        )
    return _explain_run(root, events, events[-1].run, progress)


def explain_run(root: str, name: str, progress: Progress | None = None) -> RunExplanation:
    """Return why a run compiled.

    Args:
        root: the cache.
        name: its name as `stats --runs` prints it, a prefix of it, its process id, or the directory of its profile.
        progress: called with the number of compiles explained and of all.

    Raises:
        NoSuchRunError: no run has that name, or several have.
    """
    events = tuple(Events(root).read())
    names = dict.fromkeys(event.run for event in events)
    if os.path.isdir(name):
        name = _profiled_process(name)
    found = [run for run in names if run == name]
    # Process ids are reused: the newest run counts.
    found = found or [run for run in names if run.partition(":")[0] == name][-1:]
    found = found or [run for run in names if len(name) >= _MIN_NAME and run.startswith(name)]
    if len(found) != 1:
        what = f"{len(found)} runs have the name {name!a}" if found else f"no run {name!a} is recorded"
        raise NoSuchRunError(
            f"{what} for the cache {root}", "'neuron-cache stats --runs' lists them; --last is the last"
        )
    return _explain_run(root, events, found[0], progress)


def _profiled_process(directory: str) -> str:
    """Return the process id at the end of the name of a profile's directory, or of a directory in it."""
    for name in (os.path.basename(os.path.abspath(directory)), *sorted(os.listdir(directory))):
        found = _PROFILE.search(name)
        if found:
            return found[1]
    raise NoSuchRunError(
        f"{directory} is not the profile of a run", "'neuron-cache stats --runs' lists recorded runs"
    )


class LiveExplainer:
    """Explains the compiles of this process, one by one.

    Args:
        root: the cache.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._neighbourhood: Neighbourhood | None = None
        self._journal: CompileJournal | None = None
        self._modules: frozenset[str] = frozenset()

    def explain(self, entry: str, seconds: float) -> Explanation:
        """Return why an entry was compiled just now, in `seconds`."""
        place = parse_entry_path(self._root, entry)
        if place is None:
            raise NeuronToolsError(f"{entry} is not an entry of {self._root}")
        if self._neighbourhood is None or self._journal is None:
            self._neighbourhood = Neighbourhood(self._root)
            # Without this run: its compile of the entry, which the journal has already, explains nothing.
            events = tuple(event for event in Events(self._root).read() if event.run != run_name())
            self._journal = CompileJournal(self._root, events, run_name())
        self._neighbourhood.add(place)
        self._modules |= {place.module}
        event = LookupEvent(time.time(), run_name(), LookupEventKind.MISS, seconds, place.module)
        return _explain_event(event, self._journal, self._neighbourhood, self._modules)


def _explain_run(
    root: str, events: tuple[LookupEvent, ...], run: str, progress: Progress | None
) -> RunExplanation:
    own = [event for event in events if event.run == run]
    wanted = [
        event
        for event in own
        if event.kind in {LookupEventKind.MISS, LookupEventKind.FAILURE, LookupEventKind.REPLAY}
    ]
    journal = CompileJournal(root, events, run)
    modules = frozenset(event.module for event in own)
    neighbourhood = Neighbourhood(root, modules)
    misses: list[Explanation] = []
    operators = 0
    for event in wanted[:MAX_COMPARED]:
        if operators > MAX_OPERATORS:
            break
        if progress is not None:
            progress(len(misses), len(wanted))
        misses.append(_explain_event(event, journal, neighbourhood, modules))
        facts = misses[-1].facts
        operators += len(facts.graph.operations) if facts is not None and facts.graph is not None else 0
    compiled = [
        CompiledGraph(miss.facts.entry.module, miss.facts.graph)
        for miss in misses
        if miss.facts is not None and miss.facts.graph is not None
    ]
    comparisons = [miss.comparison for miss in misses if miss.comparison is not None]
    known = [comparison.old.graph for comparison in comparisons if comparison.old.graph is not None]
    return RunExplanation(
        root=root,
        run=run,
        started_unix_s=own[0].unix_s,
        hits=sum(event.kind is LookupEventKind.HIT for event in own),
        compiled_s=sum(event.seconds for event in own if event.kind is LookupEventKind.MISS),
        misses=tuple(misses),
        shared=(*_shared_journal_causes(misses), *find_shared_causes(compiled, known)),
        left_out=len(wanted) - len(misses),
    )


def _explain_event(
    event: LookupEvent, journal: CompileJournal, neighbourhood: Neighbourhood, modules: frozenset[str]
) -> Explanation:
    place = neighbourhood.find_module(event.module)
    facts = None if place is None else neighbourhood.facts(place)
    if not neighbourhood.has_other_compiler(event.module):
        is_done = facts is not None and facts.entry.state is State.DONE
        cause = journal.find_cause(event, facts.entry.made_unix_s if facts is not None and is_done else None)
        if cause is not None:
            return Explanation(facts, (cause,), event=event)
    if facts is None:
        text = f"{event.module} is not in the cache now, so its graph cannot be compared: it was not stored, or removed"
        return Explanation(None, (make_cause(CauseName.CACHE, text),), event=event)
    # The graph is stored before the compile that the event records, so that later entries are younger.
    nearest = neighbourhood.nearest(facts, made_until_unix_s=event.unix_s)
    if nearest is None:
        return Explanation(facts, _first_compile(facts, neighbourhood.unread_count()), event=event)
    comparison = compare(nearest.facts, facts)
    causes = find_causes(comparison, same_run=nearest.facts.entry.module in modules)
    return Explanation(facts, causes, comparison, nearest.likeness, event)


def _first_compile(facts: EntryFacts, unread: int) -> tuple[Cause, ...]:
    if facts.graph is None:
        text = f"its graph cannot be read, so it cannot be compared: {'; '.join(facts.unread)}"
        return (make_cause(CauseName.FIRST, text),)
    size = plural(len(facts.graph.operations), "operator")
    text = f"no entry of the cache was like this graph ({size}) at that time"
    text += f"; {format_unread(unread)}" if unread else ""
    return (make_cause(CauseName.FIRST, text, certain=not unread),)


def _shared_journal_causes(misses: list[Explanation]) -> Iterator[SharedCause]:
    """Yield what the journal shows of several compiles, such as a deleted cache."""
    found: dict[CauseName, list[Explanation]] = {}
    for miss in misses:
        if miss.comparison is None and miss.causes[0].name is not CauseName.FIRST:
            found.setdefault(miss.causes[0].name, []).append(miss)
    for name, alike in found.items():
        if len(alike) > 1:
            first = alike[0].causes[0]
            text = f"{len(alike)} of {len(misses)} compiles; of the first: {first.text}"
            modules = dict.fromkeys(miss.event.module for miss in alike if miss.event is not None)
            yield SharedCause(Cause(name, first.confidence, text, first.advice), tuple(modules))


class CompileJournal:
    """The journal of one cache as it concerns one run.

    Args:
        root: the cache.
        events: everything recorded for it, oldest first.
        run: the run to explain.
    """

    def __init__(self, root: str, events: tuple[LookupEvent, ...], run: str) -> None:
        self._root = root
        self._run = run
        self._removals = read_removals(root)
        self._by_module: dict[str, list[LookupEvent]] = {}
        for event in events:
            self._by_module.setdefault(event.module, []).append(event)
        self._elsewhere: dict[str, list[tuple[float, str]]] | None = None

    def find_cause(self, event: LookupEvent, made_unix_s: float | None = None) -> Cause | None:
        """Return what the journal alone explains of a compile or a replayed failure.

        Args:
            event: the compile or failure.
            made_unix_s: when the entry that the cache has now was finished, None if it has none.
        """
        if event.kind is LookupEventKind.REPLAY:
            return make_cause(
                CauseName.FAILURE,
                "this graph failed to compile before, and that failure was reported again",
                certain=True,
            )
        before = [e for e in self._by_module.get(event.module, ()) if e.unix_s < event.unix_s]
        if any(e.kind is LookupEventKind.DAMAGED and e.run == self._run for e in before):
            text = "the cache had it, but the stored NEFF was damaged; 'neuron-cache verify' checks the other entries"
            return make_cause(CauseName.REMOVED, text, certain=True)
        lookups = [e for e in before if e.kind in _LOOKUPS]
        if lookups:
            return self._cause_of_loss(event, lookups[-1], made_unix_s)
        if any(e.kind is LookupEventKind.FAILURE for e in before):
            text = "an earlier compile of it failed, and it was tried again"
            return make_cause(CauseName.FAILURE, text, certain=True)
        other_root = self._other_root(event)
        if not other_root:
            return None
        gone = "" if os.path.isdir(other_root) or "://" in other_root else ", which no longer exists"
        text = (
            f"the same graph with the same flags was compiled into another cache before: {other_root}{gone}"
        )
        return make_cause(CauseName.CACHE, text, certain=True)

    def _cause_of_loss(self, event: LookupEvent, earlier: LookupEvent, made_unix_s: float | None) -> Cause:
        """Return why an entry that was there at an earlier lookup was compiled."""
        if made_unix_s is not None and made_unix_s < event.unix_s - event.seconds - _CLOCK_SKEW_S:
            text = f"the cache has had it since {format_time(made_unix_s)}, and it was compiled anyway"
            return make_cause(CauseName.CACHE, text)
        when = format_time(earlier.unix_s)
        removed = self._removals.get(event.module)
        if removed is not None and earlier.unix_s <= removed.unix_s <= event.unix_s:
            text = f"the cache had it at {when}; neuron-cache removed it at {format_time(removed.unix_s)} ({removed.reason})"
            return make_cause(CauseName.REMOVED, text, certain=True)
        if earlier.run == self._run:
            text = "the same run compiled it twice: the result was not stored, or another rank did not see it"
            return make_cause(CauseName.CACHE, text)
        text = f"it was compiled or found at {when}, but the entry or the whole cache was deleted since"
        return make_cause(CauseName.REMOVED, text)

    def _other_root(self, event: LookupEvent) -> str:
        """Return this user's cache in which the same entry was last compiled or hit before, "" for none."""
        if self._elsewhere is None:
            self._elsewhere = {}
            for root in _other_roots(self._root):
                for found in Events(root).read():
                    if found.kind in _LOOKUPS:
                        self._elsewhere.setdefault(found.module, []).append((found.unix_s, root))
        before = [item for item in self._elsewhere.get(event.module, ()) if item[0] < event.unix_s]
        return max(before)[1] if before else ""


def _other_roots(root: str) -> Iterator[str]:
    """Yield the other caches that this user's counters know."""
    directory = f"{paths.state_dir()}/compile-cache"
    try:
        keys = sorted(os.listdir(directory))
    except OSError:
        return
    for key in keys:
        try:
            with open(f"{directory}/{key}/root", encoding="utf-8", errors="replace") as file:
                other_root = file.readline().rstrip("\n")
        except OSError:
            continue
        if other_root and other_root not in {root, os.path.realpath(root)}:
            yield other_root
