"""Everything in which two entries differ, one finding each."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.cache.graphs.graph_facts import GraphForm
from neurontools.cache.tables import counted
from neurontools.cache.why.diff import Aspect, GraphDiff, diff_graphs
from neurontools.cache.why.diff_text import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.graphs.graph_facts import GraphFacts, Operation
    from neurontools.cache.why.entry_facts import EntryFacts

_COLLECTIVE = re.compile(r"(all|collective)[-_](reduce|gather|to[-_]all|permute)|reduce[-_]scatter")
_TENSORS_SHOWN = 12
_KINDS_SHOWN = 6


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
    """One difference; `old` and `new` are what stands on each side, "" for nothing. `source` is a line of the script."""

    subject: Subject
    text: str
    old: str = ""
    new: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two entries, what differs, and what could not be compared."""

    old: EntryFacts
    new: EntryFacts
    differences: tuple[Difference, ...]
    diff: GraphDiff | None
    unread: tuple[str, ...]

    @property
    def same_graph(self) -> bool:
        """Whether both were made from one graph, as far as can be told."""
        return bool(self.old.graph_hash) and self.old.graph_hash == self.new.graph_hash

    def about(self, *subjects: Subject) -> tuple[Difference, ...]:
        """Return the differences about some subjects."""
        return tuple(item for item in self.differences if item.subject in subjects)


def compare(old: EntryFacts, new: EntryFacts) -> Comparison:
    """Return in what two entries differ; the second is the one to explain."""
    unread = [f"{_short(facts)}: {text}" for facts in (old, new) for text in facts.unread]
    diff = None
    if old.graph is not None and new.graph is not None:
        if old.graph.form is new.graph.form:
            diff = diff_graphs(old.graph, new.graph)
        else:
            unread.append(
                "one graph is an HLO module, the other is of this simulator: they cannot be compared"
            )
    found = [*_compilers(old, new), *_flags(old.flags, new.flags), *_cores(old, new)]
    if diff is not None:
        found += _graphs(diff)
        if diff.is_empty and old.graph_hash != new.graph_hash:
            found.append(_hidden(diff))
    return Comparison(old, new, tuple(found), diff, tuple(unread))


def _short(facts: EntryFacts) -> str:
    return facts.entry.module


def _compilers(old: EntryFacts, new: EntryFacts) -> Iterator[Difference]:
    a, b = old.entry.compiler, new.entry.compiler
    if a != b:
        yield Difference(Subject.COMPILER, f"compiler {a or 'unknown'} -> {b or 'unknown'}", a, b)


def _flags(old: tuple[str, ...] | None, new: tuple[str, ...] | None) -> Iterator[Difference]:
    if old is None or new is None or old == new:
        return
    gone = list((Counter(old) - Counter(new)).elements())
    come = list((Counter(new) - Counter(old)).elements())
    if not gone and not come:
        text = "the same flags in another order, which is part of the key"
        yield Difference(Subject.FLAGS, text, " ".join(old), " ".join(new))
    for flag in gone:
        partner = next((other for other in come if other.partition("=")[0] == flag.partition("=")[0]), "")
        if partner:
            come.remove(partner)
            yield Difference(Subject.FLAGS, f"{flag} -> {partner}", flag, partner)
        else:
            yield Difference(Subject.FLAGS, f"{flag} is gone", flag, "")
    for flag in come:
        yield Difference(Subject.FLAGS, f"{flag} was added", "", flag)


def _cores(old: EntryFacts, new: EntryFacts) -> Iterator[Difference]:
    if old.header is None or new.header is None:
        return
    if (old.header.core_count, old.header.lnc) != (new.header.core_count, new.header.lnc):
        a, b = (f"{h.core_count} cores, LNC {h.lnc}" for h in (old.header, new.header))
        yield Difference(Subject.CORES, f"NEFF for {a} -> {b}", a, b)


def _graphs(diff: GraphDiff) -> Iterator[Difference]:
    yield from _inputs(diff)
    yield from _operators(diff)
    yield from _constants(diff)
    if diff.old.libraries != diff.new.libraries:
        a, b = (
            ", ".join(digest[:12] for digest in graph.libraries) or "none" for graph in (diff.old, diff.new)
        )
        yield Difference(Subject.LIBRARIES, f"custom-operator libraries {a} -> {b}", a, b)
    yield from _outputs(diff)


def _hidden(diff: GraphDiff) -> Difference:
    """Return the difference of graphs that are alike in all that is compared and have two hashes all the same."""
    if diff.new.form is GraphForm.HLO:
        text = "names, instruction ids or source lines of the HLO, or parts of it that are not read, differ"
        return Difference(Subject.METADATA, text)
    return Difference(
        Subject.METADATA,
        "other hashes, and nothing compared differs: buffers behind equal tensors may, as views of other tensors",
    )


def _outputs(diff: GraphDiff) -> Iterator[Difference]:
    more, less = diff.outputs
    found = [(f"also {_given(text)}", "", text) for text in more]
    found += [(f"no longer {_given(text)}", text, "") for text in less]
    for number, (text, old, new) in enumerate(found):
        if number == _TENSORS_SHOWN:
            yield Difference(Subject.OUTPUTS, f"and {len(found) - number} more outputs")
            return
        yield Difference(Subject.OUTPUTS, text, old, new)


def _given(text: str) -> str:
    # An input that is an output was changed in place.
    return f"changes {text}" if text.startswith("input ") else f"gives {text}"


def _inputs(diff: GraphDiff) -> Iterator[Difference]:
    for number, change in enumerate(diff.inputs):
        if number == _TENSORS_SHOWN:
            yield Difference(Subject.INPUTS, f"and {len(diff.inputs) - number} more inputs")
            return
        graph, index = (diff.new, change.new) if change.new >= 0 else (diff.old, change.old)
        use, source = _first_use(graph, index)
        name = f" ({graph.input_names[index]})" if graph.input_names[index] else ""
        old = str(diff.old.inputs[change.old]) if change.old >= 0 else ""
        new = str(diff.new.inputs[change.new]) if change.new >= 0 else ""
        if old and new:
            text = f"input {index}{name}: {old} -> {new}{use}"
        else:
            text = f"input {index}{name} {new or old} {'was added' if new else 'is gone'}{use}"
        yield Difference(Subject.INPUTS, text, old, new, source)


def _first_use(graph: GraphFacts, number: int) -> tuple[str, str]:
    for operation in graph.operations:
        for position, operand in enumerate(operation.operands):
            if operand.input_number == number:
                where = f" at {operation.source}" if operation.source else ""
                return f", tensor {position + 1} of {operation.name}{where}", operation.source
    return "", ""


def _operators(diff: GraphDiff) -> Iterator[Difference]:
    for operations, word in ((diff.added(), "added"), (diff.removed(), "removed")):
        if operations:
            number = counted(len(operations), "operator", "operators")
            kinds = _kinds(operations)
            source = next((item.source for item in operations if item.source), "")
            old, new = (kinds, "") if word == "removed" else ("", kinds)
            yield Difference(Subject.OPERATORS, f"{number} {word}: {kinds}", old, new, source)
    for aspect in (Aspect.DTYPE, Aspect.SHAPE, Aspect.LAYOUT, Aspect.WIRING):
        steps = [step for step in diff.changed() if aspect in step.aspects]
        if not steps:
            continue
        follows = sum(step.follows for step in steps)
        first = next((step for step in steps if not step.follows), steps[0])
        operation = diff.new.operations[first.new]
        number = counted(len(steps), "operator", "operators")
        text = f"{number} in both with another {aspect}"
        if follows == len(steps):
            sizes = ", ".join(f"{a} -> {b}" for a, b in diff.sizes)
            text += f", all by the inputs' sizes ({sizes})"
        yield Difference(Subject.OPERATORS, text, source=operation.source)


def _constants(diff: GraphDiff) -> Iterator[Difference]:
    steps = [step for step in diff.changed() if Aspect.CONSTANT in step.aspects and not step.follows]
    for number, step in enumerate(steps):
        if number == _TENSORS_SHOWN:
            yield Difference(Subject.CONSTANTS, f"and constants of {len(steps) - number} more operators")
            return
        old, new = diff.old.operations[step.old], diff.new.operations[step.new]
        a, b = changed_constants(old, new)
        where = f" at {new.source}" if new.source else ""
        subject = Subject.COLLECTIVES if is_collective(new) else Subject.CONSTANTS
        text = f"{new.name}{where}: {shortened(a)} -> {shortened(b)}"
        yield Difference(subject, text, a, b, new.source)


def changed_constants(old: Operation, new: Operation) -> tuple[str, str]:
    """Return the constants in which two aligned operators differ, as text of each side."""
    if len(old.constants) != len(new.constants):
        return ", ".join(old.constants) or "none", ", ".join(new.constants) or "none"
    pairs = [(a, b) for a, b in zip(old.constants, new.constants, strict=True) if a != b]
    return ", ".join(a for a, _ in pairs), ", ".join(b for _, b in pairs)


def is_collective(operation: Operation) -> bool:
    """Return whether an operator moves data between cores."""
    return _COLLECTIVE.search(operation.name) is not None


def _kinds(operations: tuple[Operation, ...]) -> str:
    counts = Counter(operation.name for operation in operations).most_common()
    shown = [f"{name} x{count}" if count > 1 else name for name, count in counts[:_KINDS_SHOWN]]
    if len(counts) > _KINDS_SHOWN:
        shown.append(f"and {counted(len(counts) - _KINDS_SHOWN, 'other kind', 'other kinds')}")
    return ", ".join(shown)
