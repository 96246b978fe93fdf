"""Which entry of a cache is most like another: by operators, then by shapes, among a bounded number of candidates."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from neurontools.cache.graphs.graph_reading import MAX_GRAPH_BYTES
from neurontools.cache.selection import NoSuchEntryError
from neurontools.cache.tables import counted
from neurontools.cache.walk import walk
from neurontools.cache.why.entry_facts import EntryFacts, graph_file, read_facts
from neurontools.cache.why.ranked import Ranked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neurontools.cache.graphs.graph_facts import GraphFacts
    from neurontools.cache.walk import EntryRef

T = TypeVar("T")

_CANDIDATES = 96
_READ = 3
_MOST_BYTES = 64 << 20
_OPERATOR = re.compile(r'"op":"([^"]+)"')
_VIEW = re.compile(r'"view":\[\d+,"(\w+)",\[([\d,]*)\]')
_NEAR = 0.35
_CONTAINED = 0.9
_FEWEST_OPERATORS = 3
_PREFERENCE = 0.02


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An entry that is like another. `likeness` is 0..1: the share of operators that both have."""

    facts: EntryFacts
    likeness: float


@dataclass(frozen=True, slots=True)
class _Sketch:
    """The operators' names and their tensors, counted."""

    names: Counter[str] = field(default_factory=Counter)
    tensors: Counter[str] = field(default_factory=Counter)


class Neighbourhood:
    """The entries of a root, read once each."""

    def __init__(self, root: str, preferred: frozenset[str] = frozenset()) -> None:
        """`preferred` are modules that come first among entries that are as near, such as those of the same run."""
        self.root = root
        self._preferred = preferred
        walked = walk(root)
        self.places = tuple(walked.places)
        self._tree = walked.tree
        self._facts: dict[str, EntryFacts | None] = {}
        self._sizes: dict[str, tuple[int, float]] = {}
        self._by_module = _grouped(self.places, lambda place: place.module)
        self._by_graph = _grouped(self.places, lambda place: place.module.partition("+")[0])
        self._sketches: dict[str, _Sketch] = {}

    def facts(self, place: EntryRef) -> EntryFacts | None:
        """Return what an entry says, None for one that is gone."""
        if place.path not in self._facts:
            try:
                self._facts[place.path] = read_facts(self.root, place, self._tree)
            except NoSuchEntryError:
                self._facts[place.path] = None
        return self._facts[place.path]

    def place_of_module(self, module: str) -> EntryRef | None:
        """Return the place of an entry by its name, the newest one where several compilers have it."""
        return max(
            self._by_module.get(module, ()), key=lambda place: self._size_of(place.path)[1], default=None
        )

    def has_other_compiler(self, module: str) -> bool:
        """Return whether several compilers have an entry of a name."""
        return len(self._by_module.get(module, ())) > 1

    def unread_count(self) -> int:
        """Return how many entries were looked at in vain: no graph of theirs can be read."""
        return sum(not sketch.names for sketch in self._sketches.values())

    def nearest(
        self,
        target: EntryFacts,
        made_until_unix_s: float = math.inf,
        progress: Callable[[int, int], None] | None = None,
    ) -> Neighbour | None:
        """Return the entry that is most like another one, None when nothing is near.

        Args:
            target: the entry.
            made_until_unix_s: entries whose graph was stored later do not count.
            progress: is told at how many graphs of how many was looked.
        """

        def may_be(place: EntryRef) -> bool:
            return place.path != target.entry.path and self._size_of(place.path)[1] <= made_until_unix_s

        best: Neighbour | None = None
        best_score = -1.0
        for place in self._promising(target, may_be, progress):
            facts = self.facts(place)
            if facts is None:
                continue
            score, likeness = _score(target, facts)
            score += _PREFERENCE * (place.module in self._preferred)
            if score > best_score:
                best, best_score = Neighbour(facts, likeness), score
        return best if best_score >= 0 else None

    def _promising(
        self,
        target: EntryFacts,
        may_be: Callable[[EntryRef], bool],
        progress: Callable[[int, int], None] | None,
    ) -> Iterable[EntryRef]:
        """Choose whom to read in full: those of the same graph, and those whose operators' names are most alike."""
        if target.graph_hash:
            same = [place for place in self._by_graph.get(f"MODULE_{target.graph_hash}", ()) if may_be(place)]
            if same:
                return same[:_CANDIDATES]
        if target.graph is None:
            return ()
        own = _sketch_of(target.graph)
        sketched = []
        near = self._near(target, may_be)
        for number, place in enumerate(near):
            if progress is not None:
                progress(number, len(near))
            promise = _promise(own, self._sketch(place))
            sketched.append(
                (promise + _PREFERENCE * (promise > 0 and place.module in self._preferred), place)
            )
        sketched.sort(key=lambda pair: pair[0], reverse=True)
        return [place for promise, place in sketched[:_READ] if promise > 0]

    def _near(self, target: EntryFacts, may_be: Callable[[EntryRef], bool]) -> list[EntryRef]:
        """Return those that are near in age, and those whose graph files are near in size, up to a sum of bytes."""
        size, made = self._size_of(target.entry.path)
        half = _CANDIDATES // 2
        by_age = self._by_age.nearest(made, half, may_be)
        by_size = self._by_size.nearest(math.log1p(size), half, may_be)
        near: list[EntryRef] = []
        total = 0
        for place in dict.fromkeys([*by_age, *by_size]):
            total += self._size_of(place.path)[0]
            if total > _MOST_BYTES:
                break
            near.append(place)
        return near

    @cached_property
    def _by_age(self) -> Ranked[EntryRef]:
        return Ranked((self._size_of(place.path)[1], place) for place in self.places)

    @cached_property
    def _by_size(self) -> Ranked[EntryRef]:
        return Ranked((math.log1p(self._size_of(place.path)[0]), place) for place in self.places)

    def _sketch(self, place: EntryRef) -> _Sketch:
        """Return the names and tensors of a graph's operators, without reading all of a graph of ours."""
        if place.path not in self._sketches:
            path = graph_file(self._tree, place.path)
            start = self._tree.read_start(path, MAX_GRAPH_BYTES) if path else b""
            if start.startswith(b"{"):
                text = start.decode("utf-8", "replace")
                tensors = Counter(f"{dtype}[{shape}]" for dtype, shape in _VIEW.findall(text))
                self._sketches[place.path] = _Sketch(Counter(_OPERATOR.findall(text)), tensors)
            else:
                facts = self.facts(place)
                graph = facts.graph if facts is not None else None
                self._sketches[place.path] = _sketch_of(graph) if graph is not None else _Sketch()
        return self._sketches[place.path]

    def _size_of(self, path: str) -> tuple[int, float]:
        """Return the bytes of an entry's graph file and when it was stored."""
        if path not in self._sizes:
            try:
                found = self._tree.lstat(graph_file(self._tree, path) or path)
                self._sizes[path] = (found.st_size, found.st_mtime)
            except OSError:
                self._sizes[path] = (0, 0.0)
        return self._sizes[path]


def unread_words(number: int) -> str:
    """Return words on entries that were looked at in vain."""
    return f"{counted(number, 'entry has a graph', 'entries have graphs')} that cannot be read"


def likeness(a: EntryFacts, b: EntryFacts) -> float:
    """Return the share of operators that two entries have in common, 0..1."""
    return _score(a, b)[1]


def _grouped(places: Iterable[EntryRef], key: Callable[[EntryRef], str]) -> dict[str, list[EntryRef]]:
    groups: dict[str, list[EntryRef]] = {}
    for place in places:
        groups.setdefault(key(place), []).append(place)
    return groups


def _sketch_of(graph: GraphFacts) -> _Sketch:
    operands = (operand.tensor for operation in graph.operations for operand in operation.operands)
    results = (result for operation in graph.operations for result in operation.results)
    return _Sketch(Counter(graph.names), Counter(map(str, (*operands, *results))))


def _promise(own: _Sketch, other: _Sketch) -> float:
    """Return how promising it is to compare two graphs: alike in names, then in shapes, or the one a part of the other."""
    common = (own.names & other.names).total()
    least = min(own.names.total(), other.names.total())
    if not common:
        return 0.0
    part = 0.2 * common / least if least >= _FEWEST_OPERATORS else 0.0
    return _dice(own.names, other.names) + part + 0.5 * _dice(own.tensors, other.tensors)


def _score(target: EntryFacts, other: EntryFacts) -> tuple[float, float]:
    """Return a score, below 0 for what is not near, and the likeness."""
    if target.graph_hash and target.graph_hash == other.graph_hash:
        return 10.0 + _earlier(target, other) - _flags_apart(target, other), 1.0
    if target.graph is None or other.graph is None or target.graph.form is not other.graph.form:
        return -1.0, 0.0
    names, details = Counter(target.graph.names), Counter(o.detail for o in target.graph.operations)
    others, other_details = Counter(other.graph.names), Counter(o.detail for o in other.graph.operations)
    alike = _dice(names, others)
    common = (names & others).total()
    least = min(names.total(), others.total())
    contained = least >= _FEWEST_OPERATORS and common >= _CONTAINED * least
    if alike < _NEAR and not contained:
        return -1.0, alike
    score = alike + 0.5 * _dice(details, other_details) + 0.05 * _earlier(target, other)
    return score - 0.1 * _flags_apart(target, other), alike


def _earlier(target: EntryFacts, other: EntryFacts) -> float:
    return float(other.entry.made_unix_s <= target.entry.made_unix_s)


def _flags_apart(target: EntryFacts, other: EntryFacts) -> float:
    """Return how far apart flags and compilers are: 0 for the same ones, up to 2."""
    compilers = float(target.entry.compiler != other.entry.compiler)
    if target.flags == other.flags:
        return compilers
    if target.flags is None or other.flags is None:
        return compilers + 1
    # The same flags in another order are the nearest other ones.
    return compilers + 1 - 0.8 * _dice(Counter(target.flags), Counter(other.flags))


def _dice(a: Counter[T], b: Counter[T]) -> float:
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0
