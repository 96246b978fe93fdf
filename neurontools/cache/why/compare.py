"""The parts of an entry that can explain a compile, and every difference of two entries in them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.cache import layouts
from neurontools.cache.entries import EntryReader, read_stored_flags
from neurontools.cache.entry_io import Provenance, read_provenance
from neurontools.cache.graph_facts import GraphForm
from neurontools.cache.graph_reader import (
    MAX_GRAPH_BYTES,
    UnreadableGraphError,
    facts_of_graph,
    read_graph,
)
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.selection import NoSuchEntryError
from neurontools.cache.walk import CacheTree, EntryRef, exists, open_tree
from neurontools.cache.why.diff import Aspect, GraphDiff, diff_graphs
from neurontools.cache.why.diff_text import at_source, shorten_constant
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, NeffHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.entries import Entry
    from neurontools.cache.graph_facts import GraphFacts, OperatorCall

_COLLECTIVE = re.compile(r"(all|collective)[-_](reduce|gather|to[-_]all|permute)|reduce[-_]scatter")
_SHOWN_ITEMS = 12
_SHOWN_KINDS = 6


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """An entry as `why` sees it. `flags` and `graph` are None if they cannot be read; `unread` has the reasons."""

    entry: Entry
    graph_hash: str
    flags: tuple[str, ...] | None
    graph: GraphFacts | None
    header: NeffHeader | None
    origin: Provenance | None
    unread: tuple[str, ...]


class Subject(StrEnum):
    """What a difference is about."""

    COMPILER = "compiler"
    FLAGS = "flags"
    INPUTS = "inputs"
    OPERATORS = "operators"
    CONSTANTS = "constants"
    COLLECTIVES = "collectives"
    OUTPUTS = "outputs"
    LIBRARIES = "libraries"
    CORES = "cores"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference; `old` and `new` are the two sides, "" for nothing. `source` is a line of the script."""

    subject: Subject
    text: str
    old: str = ""
    new: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class EntryComparison:
    """Two entries, their differences, and what could not be compared."""

    old: EntryFacts
    new: EntryFacts
    differences: tuple[Difference, ...]
    diff: GraphDiff | None
    unread: tuple[str, ...]

    @property
    def same_graph(self) -> bool:
        """Whether both were compiled from one graph, as far as is known."""
        return bool(self.old.graph_hash) and self.old.graph_hash == self.new.graph_hash

    def about(self, *subjects: Subject) -> tuple[Difference, ...]:
        """Return the differences about some subjects."""
        return tuple(item for item in self.differences if item.subject in subjects)


def read_facts(root: str, place: EntryRef, tree: CacheTree | None = None) -> EntryFacts:
    """Return the facts of an entry.

    Args:
        root: its cache.
        place: its place.
        tree: reads the root; None opens one.

    Raises:
        NoSuchEntryError: it is gone.
    """
    tree = open_tree(root) if tree is None else tree
    entry = EntryReader(root, tree).read(place)
    if entry is None:
        raise NoSuchEntryError(f"the entry {place.path} is gone or cannot be read")
    unread: list[str] = []
    graph = _read_entry_graph(tree, place, unread)
    if graph is not None:
        unread += graph.unread
    is_current = place.layout is CacheLayout.CURRENT
    flags = read_stored_flags(place.path, tree) if is_current else None
    if not is_current:
        unread.append("its flags: this layout stores none")
    elif flags is None:
        is_there = exists(tree, f"{place.path}/{layouts.FLAGS}")
        reason = "is not a JSON list of flags, or cannot be read" if is_there else "does not exist"
        unread.append(f"its flags: {layouts.FLAGS} {reason}")
    split = layouts.split_module(place.module)
    return EntryFacts(
        entry=entry,
        graph_hash=split[0] if split else "",
        flags=flags,
        graph=graph,
        header=_read_neff_header(tree, place),
        origin=read_provenance(place.path, tree) if is_current else None,
        unread=tuple(unread),
    )


def find_graph_file(tree: CacheTree, entry: str) -> str:
    """Return the path of an entry's graph file, "" if it has none."""
    return next((path for name in layouts.GRAPH_NAMES if exists(tree, path := f"{entry}/{name}")), "")


def _read_entry_graph(tree: CacheTree, place: EntryRef, unread: list[str]) -> GraphFacts | None:
    from neurontools.compiler.neff import parse

    stored = find_graph_file(tree, place.path)
    if stored:
        try:
            return read_graph(tree.read_start(stored, MAX_GRAPH_BYTES))
        except UnreadableGraphError as error:
            unread.append(f"its graph ({stored.rpartition('/')[2]}): {error}")
    # A NEFF of this simulator contains its graph.
    data = tree.read_start(place.file(), MAX_GRAPH_BYTES)
    try:
        if data:
            return facts_of_graph(parse(data).graph)
    except NeffError:
        pass
    if not stored:
        unread.append("its graph: no graph file is stored with it")
    return None


def _read_neff_header(tree: CacheTree, place: EntryRef) -> NeffHeader | None:
    try:
        return read_header(tree.read_start(place.file(), HEADER_BYTES))
    except NeffError:
        return None


def compare(old: EntryFacts, new: EntryFacts) -> EntryComparison:
    """Return the differences of two entries; the second is the one to explain."""
    unread = [f"{facts.entry.module}: {text}" for facts in (old, new) for text in facts.unread]
    diff = None
    if old.graph is not None and new.graph is not None:
        if old.graph.form is new.graph.form:
            diff = diff_graphs(old.graph, new.graph)
        else:
            unread.append("an HLO module and a graph of this simulator cannot be compared")
    found = [*_compare_compilers(old, new), *_compare_flags(old.flags, new.flags), *_compare_cores(old, new)]
    if diff is not None:
        found += _limit(list(_compare_inputs(diff)), "inputs")
        found += _compare_operators(diff)
        found += _limit(list(_compare_constants(diff)), "constants")
        found += _compare_libraries(diff)
        found += _limit(list(_compare_outputs(diff)), "outputs")
        if diff.is_empty and old.graph_hash != new.graph_hash:
            found.append(_hidden_difference(diff))
    return EntryComparison(old, new, tuple(found), diff, tuple(unread))


def _limit(found: list[Difference], noun: str) -> list[Difference]:
    if len(found) <= _SHOWN_ITEMS:
        return found
    text = f"and {len(found) - _SHOWN_ITEMS} more {noun}"
    return [*found[:_SHOWN_ITEMS], Difference(found[0].subject, text)]


def _compare_compilers(old: EntryFacts, new: EntryFacts) -> Iterator[Difference]:
    a, b = old.entry.compiler, new.entry.compiler
    if a != b:
        yield Difference(Subject.COMPILER, f"compiler {a or 'unknown'} -> {b or 'unknown'}", a, b)


def _compare_flags(old: tuple[str, ...] | None, new: tuple[str, ...] | None) -> Iterator[Difference]:
    if old is None or new is None or old == new:
        return
    removed = list((Counter(old) - Counter(new)).elements())
    added = list((Counter(new) - Counter(old)).elements())
    if not removed and not added:
        text = "the same flags in another order, which is part of the key"
        yield Difference(Subject.FLAGS, text, " ".join(old), " ".join(new))
    for flag in removed:
        name = flag.partition("=")[0]
        replacement = next((flag_added for flag_added in added if flag_added.partition("=")[0] == name), "")
        if replacement:
            added.remove(replacement)
            yield Difference(Subject.FLAGS, f"{flag} -> {replacement}", flag, replacement)
        else:
            yield Difference(Subject.FLAGS, f"{flag} was removed", flag, "")
    for flag in added:
        yield Difference(Subject.FLAGS, f"{flag} was added", "", flag)


def _compare_cores(old: EntryFacts, new: EntryFacts) -> Iterator[Difference]:
    if old.header is None or new.header is None:
        return
    a, b = (f"{header.core_count} cores, LNC {header.lnc}" for header in (old.header, new.header))
    if a != b:
        yield Difference(Subject.CORES, f"NEFF for {a} -> {b}", a, b)


def _compare_libraries(diff: GraphDiff) -> Iterator[Difference]:
    if diff.old.libraries != diff.new.libraries:
        a, b = (", ".join(d[:12] for d in graph.libraries) or "none" for graph in (diff.old, diff.new))
        yield Difference(Subject.LIBRARIES, f"custom-operator libraries {a} -> {b}", a, b)


def _hidden_difference(diff: GraphDiff) -> Difference:
    """Return the difference of graphs that are equal in everything compared, but have two hashes."""
    if diff.new.form is GraphForm.HLO:
        text = (
            "only names, instruction ids or source lines of the HLO differ, or parts of it that are not read; "
            "real compilers may hash them: an edited line above can be a miss"
        )
    else:
        text = "the hashes differ, but nothing that is compared: buffers behind equal tensors may differ"
    return Difference(Subject.METADATA, text)


def _compare_outputs(diff: GraphDiff) -> Iterator[Difference]:
    more, less = diff.outputs
    # An input that is an output was changed in place.
    for text in more:
        verb = "changes" if text.startswith("input ") else "returns"
        yield Difference(Subject.OUTPUTS, f"also {verb} {text}", "", text)
    for text in less:
        verb = "changes" if text.startswith("input ") else "returns"
        yield Difference(Subject.OUTPUTS, f"no longer {verb} {text}", text, "")


def _compare_inputs(diff: GraphDiff) -> Iterator[Difference]:
    for change in diff.inputs:
        graph, index = (diff.new, change.new) if change.new >= 0 else (diff.old, change.old)
        use, source = _find_first_use(graph, index)
        name = f" ({graph.input_names[index]})" if graph.input_names[index] else ""
        old = str(diff.old.inputs[change.old]) if change.old >= 0 else ""
        new = str(diff.new.inputs[change.new]) if change.new >= 0 else ""
        if old and new:
            text = f"input {index}{name}: {old} -> {new}{use}"
        else:
            text = f"input {index}{name} {new or old} was {'added' if new else 'removed'}{use}"
        yield Difference(Subject.INPUTS, text, old, new, source)


def _find_first_use(graph: GraphFacts, number: int) -> tuple[str, str]:
    for operation in graph.operations:
        for position, operand in enumerate(operation.operands):
            if operand.input_number == number:
                text = f", tensor {position + 1} of {operation.name}{at_source(operation.source)}"
                return text, operation.source
    return "", ""


def _compare_operators(diff: GraphDiff) -> Iterator[Difference]:
    for operations, word in ((diff.added(), "added"), (diff.removed(), "removed")):
        if operations:
            kinds = _format_kinds(operations)
            source = next((item.source for item in operations if item.source), "")
            old, new = (kinds, "") if word == "removed" else ("", kinds)
            text = f"{plural(len(operations), 'operator')} {word}: {kinds}"
            yield Difference(Subject.OPERATORS, text, old, new, source)
    for aspect in (Aspect.DTYPE, Aspect.SHAPE, Aspect.LAYOUT, Aspect.WIRING):
        steps = [step for step in diff.changed() if aspect in step.aspects]
        if not steps:
            continue
        first = next((step for step in steps if not step.follows), steps[0])
        what = "different inputs" if aspect is Aspect.WIRING else f"another {aspect}"
        text = f"{plural(len(steps), 'operator has', 'operators have')} {what}"
        if all(step.follows for step in steps):
            text += f", all by the inputs' sizes ({diff.sizes_text})"
        yield Difference(Subject.OPERATORS, text, source=diff.new.operations[first.new].source)


def _compare_constants(diff: GraphDiff) -> Iterator[Difference]:
    for step in diff.changed():
        if Aspect.CONSTANT in step.aspects and not step.follows:
            new = diff.new.operations[step.new]
            a, b = changed_constants(diff.old.operations[step.old], new)
            subject = Subject.COLLECTIVES if is_collective(new) else Subject.CONSTANTS
            text = f"{new.name}{at_source(new.source)}: {shorten_constant(a)} -> {shorten_constant(b)}"
            yield Difference(subject, text, a, b, new.source)


def changed_constants(old: OperatorCall, new: OperatorCall) -> tuple[str, str]:
    """Return the constants in which two aligned operators differ, as text of each side."""
    if len(old.constants) != len(new.constants):
        return ", ".join(old.constants) or "none", ", ".join(new.constants) or "none"
    pairs = [(a, b) for a, b in zip(old.constants, new.constants, strict=True) if a != b]
    return ", ".join(a for a, _ in pairs), ", ".join(b for _, b in pairs)


def is_collective(operation: OperatorCall) -> bool:
    """Return whether an operator moves data between cores."""
    return _COLLECTIVE.search(operation.name) is not None


def _format_kinds(operations: tuple[OperatorCall, ...]) -> str:
    counts = Counter(operation.name for operation in operations).most_common()
    shown = [f"{name} x{count}" if count > 1 else name for name, count in counts[:_SHOWN_KINDS]]
    if len(counts) > _SHOWN_KINDS:
        shown.append(f"and {plural(len(counts) - _SHOWN_KINDS, 'other kind')}")
    return ", ".join(shown)
