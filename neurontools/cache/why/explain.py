"""`neuron-cache why` as a library: why a run compiled, why an entry was compiled, why two entries differ."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.cache.entry_files import State
from neurontools.cache.events import Events, EventTail, LookupEvent, LookupEventKind, run_name
from neurontools.cache.graph_facts import continues, read_text
from neurontools.cache.selection import NoSuchEntryError, find_entries
from neurontools.cache.walk import parse_entry_path
from neurontools.cache.why.causes import (
    Cause,
    CauseName,
    CompiledGraph,
    SharedCause,
    find_branch_causes,
    find_causes,
    find_series_cause,
    find_shared_causes,
    make_cause,
)
from neurontools.cache.why.compare import EntryComparison, EntryFacts, compare, read_facts
from neurontools.cache.why.precedents import (
    CompileJournal,
    Kinship,
    Neighbour,
    Neighbourhood,
    cut_of,
    find_nearest,
    likeness,
    script_of,
)
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


class NoSuchRunError(NeuronToolsError):
    """No run of that name is recorded."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an entry was compiled.

    Args:
        facts: the entry, None if the cache does not have it now.
        causes: what explains it, or what differs.
        comparison: with an earlier entry, None if none is related.
        likeness: share of operators in common with that entry, 0..1.
        event: the compile, for an entry of a run.
        before: the graph of which this one is the rest of the step, None for a graph that starts a step.
    """

    facts: EntryFacts | None
    causes: tuple[Cause, ...] = ()
    comparison: EntryComparison | None = None
    likeness: float = 0.0
    event: LookupEvent | None = None
    before: EntryFacts | None = None


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
    comparison = compare(*facts)
    share = likeness(*facts)
    return Explanation(
        facts[1], find_causes(comparison, same_run=_is_same_process(*facts)), comparison, share
    )


def explain_entry(root: str, name: str, progress: Progress | None = None) -> Explanation:
    """Return why an entry was compiled: what differs from the earlier graph of its place in the script.

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
    earlier = neighbourhood.earlier(target, neighbourhood.stored_unix_s(place), progress)
    same_run = frozenset(facts.entry.module for facts in earlier if _is_same_process(facts, target))
    return _explain_facts(target, earlier, same_run)


def _is_same_process(one: EntryFacts, other: EntryFacts) -> bool:
    a, b = one.origin, other.origin
    return a is not None and b is not None and (a.host, a.pid) == (b.host, b.pid)


def _explain_facts(
    target: EntryFacts,
    earlier: tuple[EntryFacts, ...],
    same_run: frozenset[str],
    event: LookupEvent | None = None,
) -> Explanation:
    """Return what earlier entries, the newest first, show of a compile; `same_run` are modules of its run."""
    nearest = find_nearest(target, earlier, same_run)
    comparison = None if nearest is None else compare(nearest.facts, target)
    before = None
    causes = _series_cause(target, earlier, same_run)
    if not causes:
        before = next((facts for facts in earlier if _is_rest_of(target, facts)), None)
        causes = _read_cause(target, before, nearest, earlier)
    if not causes and nearest is not None and comparison is not None:
        is_same_run = nearest.facts.entry.module in same_run
        find = find_branch_causes if nearest.kinship is Kinship.SAME_START else find_causes
        causes = find(comparison, same_run=is_same_run)
    if not causes:
        return Explanation(target, (_first_compile(target, earlier),), event=event)
    share = 0.0 if nearest is None else nearest.likeness
    return Explanation(target, causes, comparison, share, event, before)


def _read_cause(
    target: EntryFacts, before: EntryFacts | None, nearest: Neighbour | None, earlier: tuple[EntryFacts, ...]
) -> tuple[Cause, ...]:
    """Return a value read that ended the graph before, or that ended one in an earlier version of the program."""
    if before is not None and before.graph is not None:
        text = f"{read_text(before.graph.cut)}: it ends the graph in the middle of the step; this graph is the rest"
        return (make_cause(CauseName.READ, text),)
    read = "" if nearest is None else _removed_read(target, nearest.facts, earlier)
    return (
        (make_cause(CauseName.READ, read, advice="none needed: the step is one graph now"),) if read else ()
    )


def _is_rest_of(target: EntryFacts, before: EntryFacts) -> bool:
    if target.graph is None or before.graph is None or script_of(target) != script_of(before):
        return False
    return continues(target.graph, before.graph)


def _removed_read(target: EntryFacts, rest: EntryFacts, earlier: tuple[EntryFacts, ...]) -> str:
    """Return a sentence on a value read that cut the step before and no longer does, "" for none."""
    before = next((facts.graph for facts in earlier if _is_rest_of(rest, facts)), None)
    if before is None or target.graph is None or target.graph.names[:1] != before.names[:1]:
        return ""
    cause, _, source = before.cut.rpartition(" at ")
    return f"the value read at {source} ({cause}) no longer ends a graph in the middle of the step"


def _series_cause(
    target: EntryFacts, earlier: tuple[EntryFacts, ...], same_run: frozenset[str]
) -> tuple[Cause, ...]:
    """Return what an entry shows together with those that its run compiled at the same place from the same operators."""
    alike = [
        facts.graph
        for facts in reversed(earlier)
        if facts.entry.module in same_run
        and facts.graph is not None
        and target.graph is not None
        and cut_of(facts) == cut_of(target)
        and facts.graph.names == target.graph.names
        and facts.flags == target.flags
        and [tensor.dtype for tensor in facts.graph.inputs] == [t.dtype for t in target.graph.inputs]
    ]
    if not alike or target.graph is None:
        return ()
    cause = find_series_cause((*alike, target.graph))
    return () if cause is None else (cause,)


def _first_compile(target: EntryFacts, earlier: tuple[EntryFacts, ...]) -> Cause:
    if target.graph is None:
        text = f"its graph cannot be read, so it cannot be compared: {'; '.join(target.unread)}"
        return make_cause(CauseName.FIRST, text)
    script, cut = script_of(target), cut_of(target)
    if script and cut.cause and any(script_of(facts) == script for facts in earlier):
        text = f"first compile of the graph that ends at {cut.source} ({cut.cause})"
    else:
        text = f"first compile of {script or 'this program'}"
    unread = sum(facts.graph is None for facts in earlier)
    if unread:
        text += f"; {plural(unread, 'earlier entry has a graph', 'earlier entries have graphs')} that cannot be read"
    return make_cause(CauseName.FIRST, text)


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
        self._tail = EventTail(root)

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
        looked_up = {event.module for event in self._tail.new() if event.run == run_name()}
        self._neighbourhood.same_run |= looked_up | {place.module}
        event = LookupEvent(time.time(), run_name(), LookupEventKind.MISS, seconds, place.module)
        return _explain_event(event, self._journal, self._neighbourhood)


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
    neighbourhood = Neighbourhood(root, frozenset(event.module for event in own))
    misses: list[Explanation] = []
    operators = 0
    for event in wanted[:MAX_COMPARED]:
        if operators > MAX_OPERATORS:
            break
        if progress is not None:
            progress(len(misses), len(wanted))
        misses.append(_explain_event(event, journal, neighbourhood))
        facts = misses[-1].facts
        operators += len(facts.graph.operations) if facts is not None and facts.graph is not None else 0
    reads = tuple(_shared_reads(misses))
    read = {module for shared in reads for module in shared.modules}
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
        shared=(
            *_shared_journal_causes(misses),
            *reads,
            # A cut that only some steps have comes from a value read.
            *(
                shared
                for shared in find_shared_causes(compiled, known)
                if shared.cause.name is not CauseName.CUT or read.isdisjoint(shared.modules)
            ),
        ),
        left_out=len(wanted) - len(misses),
    )


def _explain_event(event: LookupEvent, journal: CompileJournal, neighbourhood: Neighbourhood) -> Explanation:
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
    earlier = neighbourhood.earlier(facts, event.unix_s)
    return _explain_facts(facts, earlier, neighbourhood.same_run, event)


def _shared_reads(misses: list[Explanation]) -> Iterator[SharedCause]:
    """Yield each value read that cut a step, with the graphs before and after it."""
    rests: dict[str, list[Explanation]] = {}
    for miss in misses:
        if miss.before is not None and miss.before.graph is not None:
            rests.setdefault(miss.before.graph.cut, []).append(miss)
    for cut, found in rests.items():
        modules = {miss.event.module for miss in found if miss.event is not None}
        modules |= {miss.before.entry.module for miss in found if miss.before is not None}
        compiled = [
            miss.event.module for miss in misses if miss.event is not None and miss.event.module in modules
        ]
        text = f"{read_text(cut)}: it ends the graph in the middle of the step"
        yield SharedCause(make_cause(CauseName.READ, text), tuple(compiled))


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
            yield SharedCause(Cause(name, text, first.advice), tuple(modules))
