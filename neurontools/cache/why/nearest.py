"""The entry of a cache that is most like another: by operators, then by shapes, among a bounded number of candidates."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from neurontools.base.text import plural
from neurontools.cache.graph_facts import TensorType
from neurontools.cache.graph_reader import MAX_GRAPH_BYTES
from neurontools.cache.selection import NoSuchEntryError
from neurontools.cache.walk import walk
from neurontools.cache.why.compare import EntryFacts, find_graph_file, read_facts
from neurontools.compiler.graph import GraphError, count_stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.graph_facts import GraphFacts
    from neurontools.cache.walk import EntryRef

T = TypeVar("T")

_MAX_CANDIDATES = 96
_MAX_READ = 3
_MAX_TOTAL_BYTES = 64 << 20
_MIN_LIKENESS = 0.35
_MIN_CONTAINED = 0.9
_MIN_OPERATORS = 3
_SAME_RUN_BONUS = 0.02


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An entry that is like another. `likeness` is 0..1: the share of operators in common."""

    facts: EntryFacts
    likeness: float


@dataclass(frozen=True, slots=True)
class _Sketch:
    """The names of a graph's operators and their tensors, counted."""

    names: Counter[str] = field(default_factory=Counter)
    tensors: Counter[str] = field(default_factory=Counter)


class Neighbourhood:
    """The entries of a root, each read once."""

    def __init__(self, root: str, same_run: frozenset[str] = frozenset()) -> None:
        """`same_run`: modules of the run to explain, preferred among entries that are equally near."""
        self.root = root
        self._same_run = same_run
        walked = walk(root)
        self.places = tuple(walked.places)
        self._tree = walked.tree
        self._facts: dict[str, EntryFacts | None] = {}
        self._files: dict[str, tuple[int, float]] = {}
        self._sketches: dict[str, _Sketch] = {}
        self._by_module: dict[str, list[EntryRef]] = {}
        for place in self.places:
            self._by_module.setdefault(place.module, []).append(place)

    def add(self, place: EntryRef) -> None:
        """Add an entry that was compiled in the run since the root was read."""
        self._same_run |= {place.module}
        self._facts.pop(place.path, None)
        self._files.pop(place.path, None)
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
        places = self._by_module.get(module, ())
        return max(places, key=lambda place: self._graph_stat(place.path)[1], default=None)

    def has_other_compiler(self, module: str) -> bool:
        """Return whether several compilers have an entry of this name."""
        return len(self._by_module.get(module, ())) > 1

    def unread_count(self) -> int:
        """Return the number of candidates whose graph cannot be read."""
        return sum(not sketch.names for sketch in self._sketches.values())

    def stored_unix_s(self, place: EntryRef) -> float:
        """Return when the graph of an entry was stored."""
        return self._graph_stat(place.path)[1]

    def nearest(
        self,
        target: EntryFacts,
        made_until_unix_s: float = math.inf,
        progress: Callable[[int, int], None] | None = None,
    ) -> Neighbour | None:
        """Return the entry that is most like another one, None if nothing is near.

        Args:
            target: the entry.
            made_until_unix_s: entries whose graph was stored later are ignored.
            progress: called with the number of graphs read and of all.
        """
        candidates = [
            place
            for place in self.places
            if place.path != target.entry.path and self._graph_stat(place.path)[1] <= made_until_unix_s
        ]
        scored = []
        for place in self._select(target, candidates, progress):
            facts = self.facts(place)
            if facts is not None:
                score, share = _score(target, facts)
                scored.append((score + self._bonus(place), Neighbour(facts, share)))
        score, neighbour = max(scored, key=lambda pair: pair[0], default=(-1.0, None))
        return neighbour if score >= 0 else None

    def _bonus(self, place: EntryRef) -> float:
        return _SAME_RUN_BONUS if place.module in self._same_run else 0.0

    def _select(
        self, target: EntryFacts, candidates: list[EntryRef], progress: Callable[[int, int], None] | None
    ) -> list[EntryRef]:
        """Return the entries to read in full: those of the same graph, else those with the most similar sketch."""
        if target.graph_hash:
            prefix = f"MODULE_{target.graph_hash}+"
            same = [p for p in candidates if p.module.startswith(prefix) or p.module == prefix[:-1]]
            if same:
                return same[:_MAX_CANDIDATES]
        if target.graph is None:
            return []
        own = _sketch_graph(target.graph)
        near = self._nearest_files(target, candidates)
        ranked = []
        for number, place in enumerate(near):
            if progress is not None:
                progress(number, len(near))
            potential = _potential(own, self._sketch(place))
            if potential > 0:
                ranked.append((potential + self._bonus(place), place))
        ranked.sort(key=lambda pair: pair[0], reverse=True)
        return [place for _, place in ranked[:_MAX_READ]]

    def _nearest_files(self, target: EntryFacts, candidates: list[EntryRef]) -> list[EntryRef]:
        """Return the candidates nearest in age, and those nearest in size of graph, up to a total of bytes."""
        size, made = self._graph_stat(target.entry.path)
        half = _MAX_CANDIDATES // 2
        by_age = sorted(candidates, key=lambda place: abs(self._graph_stat(place.path)[1] - made))[:half]
        by_size = sorted(candidates, key=lambda place: abs(self._graph_stat(place.path)[0] - size))[:half]
        found: list[EntryRef] = []
        total = 0
        for place in dict.fromkeys([*by_age, *by_size]):
            total += self._graph_stat(place.path)[0]
            if total > _MAX_TOTAL_BYTES:
                break
            found.append(place)
        return found

    def _sketch(self, place: EntryRef) -> _Sketch:
        """Return a graph's sketch, without parsing all of a canonical graph."""
        if place.path not in self._sketches:
            path = find_graph_file(self._tree, place.path)
            start = self._tree.read_start(path, MAX_GRAPH_BYTES) if path else b""
            if start.startswith(b"{"):
                self._sketches[place.path] = _sketch_stored(start)
            else:
                facts = self.facts(place)
                graph = facts.graph if facts is not None else None
                self._sketches[place.path] = _sketch_graph(graph) if graph is not None else _Sketch()
        return self._sketches[place.path]

    def _graph_stat(self, path: str) -> tuple[int, float]:
        """Return the size of an entry's graph file and when it was stored."""
        if path not in self._files:
            try:
                found = self._tree.lstat(find_graph_file(self._tree, path) or path)
                self._files[path] = (found.st_size, found.st_mtime)
            except OSError:
                self._files[path] = (0, 0.0)
        return self._files[path]


def format_unread(number: int) -> str:
    """Return words on entries whose graph cannot be read."""
    return f"{plural(number, 'entry has a graph', 'entries have graphs')} that cannot be read"


def likeness(old: EntryFacts, new: EntryFacts) -> float:
    """Return the share of operators that two entries have in common, 0..1."""
    return _score(old, new)[1]


def _sketch_graph(graph: GraphFacts) -> _Sketch:
    tensors = (str(tensor) for operation in graph.operations for tensor in operation.tensors)
    return _Sketch(Counter(graph.names), Counter(tensors))


def _sketch_stored(data: bytes) -> _Sketch:
    """Return the sketch of a canonical graph from its tables alone."""
    try:
        names, tensors = count_stored(data)
    except GraphError:
        return _Sketch()
    return _Sketch(names, Counter({str(TensorType(*tensor)): count for tensor, count in tensors.items()}))


def _potential(own: _Sketch, candidate: _Sketch) -> float:
    """Return how promising a comparison is: similar names, then shapes, or one graph a part of the other."""
    common = (own.names & candidate.names).total()
    least = min(own.names.total(), candidate.names.total())
    if not common:
        return 0.0
    part = 0.2 * common / least if least >= _MIN_OPERATORS else 0.0
    return _dice(own.names, candidate.names) + part + 0.5 * _dice(own.tensors, candidate.tensors)


def _score(target: EntryFacts, candidate: EntryFacts) -> tuple[float, float]:
    """Return a score, below 0 for entries that are not near, and the likeness."""
    earlier = float(candidate.entry.made_unix_s <= target.entry.made_unix_s)
    distance = _key_distance(target, candidate)
    if target.graph_hash and target.graph_hash == candidate.graph_hash:
        return 10.0 + earlier - distance, 1.0
    if target.graph is None or candidate.graph is None or target.graph.form is not candidate.graph.form:
        return -1.0, 0.0
    names, other_names = Counter(target.graph.names), Counter(candidate.graph.names)
    alike = _dice(names, other_names)
    least = min(names.total(), other_names.total())
    is_part = least >= _MIN_OPERATORS and (names & other_names).total() >= _MIN_CONTAINED * least
    if alike < _MIN_LIKENESS and not is_part:
        return -1.0, alike
    details = Counter(operation.detail for operation in target.graph.operations)
    candidate_details = Counter(operation.detail for operation in candidate.graph.operations)
    return alike + 0.5 * _dice(details, candidate_details) + 0.05 * earlier - 0.1 * distance, alike


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
