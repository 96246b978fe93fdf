"""What came before a compile: lookups and removals in the journal, and the earlier graph that it is compared with.

The journal alone explains a lost entry, a failure, another cache. The earlier graph is the same graph, else one of the
same script and place. A place is what ended a graph: a cause and a line. Lines move when a script is edited, so graphs of
other runs also match with the same kind of cut in the same file. A graph of another script counts only if it is nearly
the same.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from neurontools import paths
from neurontools.base.units import format_time
from neurontools.cache.entry_io import Provenance, read_provenance
from neurontools.cache.events import Events, LookupEvent, LookupEventKind, read_removals
from neurontools.cache.graph_reader import MAX_GRAPH_BYTES
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.selection import NoSuchEntryError
from neurontools.cache.walk import EntryRef, walk
from neurontools.cache.why.causes import Cause, CauseName, make_cause
from neurontools.cache.why.compare import EntryFacts, find_graph_file, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Times in a cache on another host's disk are that host's.
_CLOCK_SKEW_S = 2.0
_LOOKUPS = frozenset({LookupEventKind.MISS, LookupEventKind.HIT})


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
            )
        before = [e for e in self._by_module.get(event.module, ()) if e.unix_s < event.unix_s]
        if any(e.kind is LookupEventKind.DAMAGED and e.run == self._run for e in before):
            text = "the cache had it, but the stored NEFF was damaged; 'neuron-cache verify' checks the other entries"
            return make_cause(CauseName.REMOVED, text)
        lookups = [e for e in before if e.kind in _LOOKUPS]
        if lookups:
            return self._cause_of_loss(event, lookups[-1], made_unix_s)
        if any(e.kind is LookupEventKind.FAILURE for e in before):
            text = "an earlier compile of it failed, and it was tried again"
            return make_cause(CauseName.FAILURE, text)
        other_root = self._other_root(event)
        if not other_root:
            return None
        gone = "" if os.path.isdir(other_root) or "://" in other_root else ", which no longer exists"
        text = (
            f"the same graph with the same flags was compiled into another cache before: {other_root}{gone}"
        )
        return make_cause(CauseName.CACHE, text)

    def _cause_of_loss(self, event: LookupEvent, earlier: LookupEvent, made_unix_s: float | None) -> Cause:
        """Return why an entry that was there at an earlier lookup was compiled."""
        if made_unix_s is not None and made_unix_s < event.unix_s - event.seconds - _CLOCK_SKEW_S:
            text = f"the cache has had it since {format_time(made_unix_s)}, and it was compiled anyway"
            return make_cause(CauseName.CACHE, text)
        when = format_time(earlier.unix_s)
        removed = self._removals.get(event.module)
        if removed is not None and earlier.unix_s <= removed.unix_s <= event.unix_s:
            text = f"the cache had it at {when}; neuron-cache removed it at {format_time(removed.unix_s)} ({removed.reason})"
            return make_cause(CauseName.REMOVED, text)
        if earlier.run == self._run:
            text = "the same run compiled it twice: the result was not stored, or another rank did not see it"
            return make_cause(CauseName.CACHE, text)
        text = f"the cache had it at {when}, and the entry or the whole cache was deleted since"
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


T = TypeVar("T")

_MAX_OF_SCRIPT, _MAX_OTHERS = 64, 16
_MAX_TOTAL_BYTES = MAX_GRAPH_BYTES
_MIN_LIKENESS = 0.35
_NEARLY_THE_SAME = 0.9
_MIN_OPERATORS = 8
_SAME_RUN_BONUS = 0.02
# Programs that run a user's file; the line that ended a graph names the file.
_RUNNERS = frozenset({"__main__.py", "ipykernel_launcher.py"})


class Kinship(IntEnum):
    """How an earlier graph is related to another one, the closest last."""

    NONE = 0
    OTHER_SCRIPT = 1
    SAME_START = 2
    MOVED_LINES = 3
    SAME_PLACE = 4
    SAME_GRAPH = 5


class Cut(NamedTuple):
    """What ended a graph; `file` is without its directory, so that copies of a script count as one."""

    cause: str
    file: str
    line: str

    @property
    def source(self) -> str:
        """The line as `file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An earlier entry; `likeness` is the share of operators in common, 0..1."""

    facts: EntryFacts
    likeness: float
    kinship: Kinship


def cut_of(facts: EntryFacts) -> Cut:
    """Return what ended an entry's graph; all parts are "" if it is unknown."""
    cause, _, source = ("" if facts.graph is None else facts.graph.cut).rpartition(" at ")
    path, _, line = source.rpartition(":")
    return Cut(cause, os.path.basename(path), line) if cause else Cut("", "", "")


def script_of(facts: EntryFacts) -> str:
    """Return the file name of the script that compiled an entry, "" if it is unknown, as for `python -`."""
    program = "" if facts.origin is None else facts.origin.program
    if program.endswith(".py") and program not in _RUNNERS:
        return program
    file = cut_of(facts).file
    return file if file.endswith(".py") else ""


class Neighbourhood:
    """The entries of a root, each read once."""

    def __init__(self, root: str, same_run: frozenset[str] = frozenset()) -> None:
        """`same_run`: modules that the run to explain looked up."""
        self.root = root
        self.same_run = same_run
        walked = walk(root)
        self.places = tuple(walked.places)
        self._tree = walked.tree
        self._facts: dict[str, EntryFacts | None] = {}
        self._origins: dict[str, Provenance | None] = {}
        self._stored: dict[str, tuple[float, int]] = {}
        self._by_module: dict[str, list[EntryRef]] = {}
        for place in self.places:
            self._by_module.setdefault(place.module, []).append(place)

    def add(self, place: EntryRef) -> None:
        """Add an entry that was compiled in the run since the root was read."""
        for known in (self._facts, self._origins, self._stored):
            known.pop(place.path, None)
        if place not in self._by_module.setdefault(place.module, []):
            self._by_module[place.module].append(place)
            self.places = (*self.places, place)

    def facts(self, place: EntryRef) -> EntryFacts | None:
        """Return the facts of an entry, None if it is gone."""
        if place.path not in self._facts:
            try:
                self._facts[place.path] = read_facts(self.root, place, self._tree)
            except NoSuchEntryError:
                self._facts[place.path] = None
        return self._facts[place.path]

    def find_module(self, module: str) -> EntryRef | None:
        """Return the place of an entry by its name, the newest if several compilers have it."""
        return max(self._by_module.get(module, ()), key=self.stored_unix_s, default=None)

    def has_other_compiler(self, module: str) -> bool:
        """Return whether several compilers have an entry of this name."""
        return len(self._by_module.get(module, ())) > 1

    def stored_unix_s(self, place: EntryRef) -> float:
        """Return when the graph of an entry was stored."""
        return self._graph_stat(place)[0]

    def earlier(
        self,
        target: EntryFacts,
        made_until_unix_s: float = math.inf,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[EntryFacts, ...]:
        """Return entries to compare another one with: those of the same graph, else the newest, the script's own first.

        Args:
            target: the entry.
            made_until_unix_s: entries whose graph was stored later are ignored.
            progress: called with the number of graphs read and of all.
        """
        places = [
            place
            for place in self.places
            if place.path != target.entry.path and self.stored_unix_s(place) <= made_until_unix_s
        ]
        prefix = f"MODULE_{target.graph_hash}+"
        same = [place for place in places if place.module.startswith(prefix) or place.module == prefix[:-1]]
        chosen = same if target.graph_hash and same else list(self._newest(target, places))
        found = []
        for number, place in enumerate(chosen):
            if progress is not None:
                progress(number, len(chosen))
            facts = self.facts(place)
            found += [facts] if facts is not None else []
        return tuple(found)

    def _newest(self, target: EntryFacts, places: list[EntryRef]) -> Iterator[EntryRef]:
        """Yield the newest entries, those of the target's program first, up to a number and a size."""
        own = "" if target.origin is None else target.origin.program
        newest = sorted(places, key=self.stored_unix_s, reverse=True)
        is_own = [bool(own) and self._program(place) == own for place in newest]
        of_script = [place for place, same in zip(newest, is_own, strict=True) if same]
        others = [place for place, same in zip(newest, is_own, strict=True) if not same]
        total = 0
        for place in (*of_script[:_MAX_OF_SCRIPT], *others[:_MAX_OTHERS]):
            total += self._graph_stat(place)[1]
            if total <= _MAX_TOTAL_BYTES:
                yield place

    def _program(self, place: EntryRef) -> str:
        if place.path not in self._origins:
            has_origin = place.layout is CacheLayout.CURRENT
            self._origins[place.path] = read_provenance(place.path, self._tree) if has_origin else None
        origin = self._origins[place.path]
        return "" if origin is None else origin.program

    def _graph_stat(self, place: EntryRef) -> tuple[float, int]:
        """Return when an entry's graph file was stored, and its size."""
        if place.path not in self._stored:
            try:
                found = self._tree.lstat(find_graph_file(self._tree, place.path) or place.path)
                self._stored[place.path] = (found.st_mtime, found.st_size)
            except OSError:
                self._stored[place.path] = (0.0, 0)
        return self._stored[place.path]


def find_nearest(
    target: EntryFacts, candidates: tuple[EntryFacts, ...], same_run: frozenset[str]
) -> Neighbour | None:
    """Return the closest relative of an entry, or None.

    Args:
        target: the entry.
        candidates: earlier entries, the newest first.
        same_run: modules of the run that compiled the entry.
    """
    # Where the run itself met a cut, its line did not move.
    met = {cut_of(facts) for facts in candidates if facts.entry.module in same_run}
    best: Neighbour | None = None
    best_rank: tuple[float, ...] = (0,)
    for facts in candidates:
        kinship = _kinship(target, facts, may_move=cut_of(facts) not in met)
        alike = _details_in_common(target, facts) + _SAME_RUN_BONUS * (facts.entry.module in same_run)
        rank = (kinship, -_key_distance(target, facts), alike)
        if kinship and rank > best_rank:
            best, best_rank = Neighbour(facts, likeness(target, facts), kinship), rank
    return best


def likeness(old: EntryFacts, new: EntryFacts) -> float:
    """Return the share of operators that two entries have in common, 0..1."""
    if old.graph_hash and old.graph_hash == new.graph_hash:
        return 1.0
    if old.graph is None or new.graph is None or old.graph.form is not new.graph.form:
        return 0.0
    return _dice(Counter(old.graph.names), Counter(new.graph.names))


def _kinship(target: EntryFacts, candidate: EntryFacts, *, may_move: bool) -> Kinship:
    if target.graph_hash and target.graph_hash == candidate.graph_hash:
        return Kinship.SAME_GRAPH
    alike = likeness(target, candidate)
    own, other = cut_of(target), cut_of(candidate)
    script = script_of(target)
    if script and script == script_of(candidate):
        if own == other:
            return Kinship.SAME_PLACE if alike >= _MIN_LIKENESS else Kinship.NONE
        if may_move and own[:2] == other[:2] and alike >= _MIN_LIKENESS:
            return Kinship.MOVED_LINES
        return Kinship.SAME_START if _start(target) == _start(candidate) != "" else Kinship.NONE
    if alike < _NEARLY_THE_SAME:
        return Kinship.NONE
    is_known = bool(own.cause or other.cause)
    is_small = target.graph is None or len(target.graph.operations) < _MIN_OPERATORS
    return Kinship.NONE if is_known and is_small else Kinship.OTHER_SCRIPT


def _start(facts: EntryFacts) -> str:
    """Return the line of a graph's first operator."""
    operations = () if facts.graph is None else facts.graph.operations
    return os.path.basename(operations[0].source) if operations else ""


def _details_in_common(target: EntryFacts, candidate: EntryFacts) -> float:
    if target.graph is None or candidate.graph is None:
        return 0.0
    one, other = (Counter(op.detail for op in graph.operations) for graph in (target.graph, candidate.graph))
    return likeness(target, candidate) + 0.5 * _dice(one, other)


def _key_distance(target: EntryFacts, candidate: EntryFacts) -> float:
    """Return how far apart compilers and flags are: 0 for the same ones, up to 2."""
    distance = float(target.entry.compiler != candidate.entry.compiler)
    if target.flags == candidate.flags:
        return distance
    if target.flags is None or candidate.flags is None:
        return distance + 1
    # The same flags in another order are the nearest ones.
    return distance + 1 - 0.8 * _dice(Counter(target.flags), Counter(candidate.flags))


def _dice(a: Counter[T], b: Counter[T]) -> float:
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0
