"""The causes of a compile: names, remedies, and how comparing an entry with an earlier one shows them.

A cause is stated only where the graphs show it; otherwise the report says what differs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.cache.graph_facts import GraphFacts, OperatorCall, has_backward, is_value_read, read_text
from neurontools.cache.why.compare import Subject, changed_constants, is_collective
from neurontools.cache.why.diff import CASTS, Aspect
from neurontools.cache.why.diff_text import at_source, shorten_constant
from neurontools.cache.why.kernels import describe_changed_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from neurontools.cache.why.compare import EntryComparison
    from neurontools.cache.why.diff import GraphDiff

    Names = tuple[str, ...]

_TRAINING = re.compile(r"dropout|bernoulli|rrelu|batch_norm|batch-norm|rng", re.IGNORECASE)
_STATE = re.compile(r"aten\.(zeros|full|ones|empty)(_like)?\.")
_TRAINING_FLAGS = frozenset({"True", "False"})
_MIN_COMMON_OPERATORS = 2

_MIN_VARYING_VALUES = 3
_MIN_SPLIT_OPERATORS = 3
_SHOWN_VALUES = 16


class CauseName(StrEnum):
    """A classic cause of a compile."""

    FIRST = "first compile"
    COMPILER = "compiler changed"
    FLAGS = "flags changed"
    SHAPE = "input shape changed"
    LAST_BATCH = "last partial batch"
    READ = "value read"
    CUT = "mark_step moved"
    SCALAR = "Python scalar baked in"
    DTYPE = "data type changed"
    MODE = "dropout or batch norm differs"
    OPTIMIZER = "first step of the optimizer"
    KERNEL = "kernel changed"
    CODE = "computation changed"
    REMOVED = "entry was removed"
    CACHE = "cache not used"
    FAILURE = "cached failure"


_ADVICE = {
    CauseName.FIRST: "none needed; 'neuron_parallel_compile' or 'neuron-cache copy' can fill a cache before a run",
    CauseName.COMPILER: "keep one version on all hosts and in CI; 'neuron-cache prune --old-compilers' frees the old entries",
    CauseName.FLAGS: "set the same NEURON_CC_FLAGS, in the same order, for all runs that share a cache; leave out paths "
    "that differ between runs or hosts",
    CauseName.SHAPE: "pad to one size, or to a few fixed sizes (buckets): every new shape is a new graph",
    CauseName.LAST_BATCH: "DataLoader(..., drop_last=True), or pad the last batch to the full size",
    CauseName.READ: "read values after the step: print, .item(), .cpu(), if and shapes that depend on values end a graph; "
    "torch.where and sums on the device do not",
    CauseName.CUT: "end every step at the same place: call mark_step once a step, and do not print, .item() or .cpu() in "
    "between in some steps only",
    CauseName.SCALAR: "0, 1, -1 and integers that an operator needs for its form (a dimension, a shift) are constants of "
    "the graph, other numbers are its inputs: make the number a tensor on the device (torch.tensor(value, device=...))",
    CauseName.DTYPE: "use one setting of autocast (XLA_USE_BF16, torch.autocast, .to(dtype)) in all steps; "
    "look for a Python number or a new tensor of the default type",
    CauseName.MODE: "one compile for model.train() and one for model.eval() are normal; switch between them outside of a step",
    CauseName.OPTIMIZER: "two compiles, one for the first step and one for the rest, are normal",
    CauseName.KERNEL: "a kernel is part of the graph: change its source, its constants and what it captures between runs only, "
    "and pass what varies as a tensor",
    CauseName.CODE: "a different computation needs its own compile; the differences show what changed",
    CauseName.REMOVED: "'neuron-cache pin' keeps an entry; a cache in /tmp or in a container is gone after a restart",
    CauseName.CACHE: "use one writable cache for all runs (NEURON_COMPILE_CACHE_URL, or --cache_dir of NEURON_CC_FLAGS, "
    "which wins) and no --no_cache",
    CauseName.FAILURE: "'neuron-cache show' prints the error; after a fix, NEURON_CC_FLAGS=--retry_failed_compilation or "
    "'neuron-cache prune --failed' tries again",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause with its evidence and remedy. `values` are those of what varied, in order."""

    name: CauseName
    text: str
    advice: str
    values: tuple[str, ...] = ()


def make_cause(name: CauseName, text: str, *, values: tuple[str, ...] = (), advice: str = "") -> Cause:
    """Return a cause; its advice is that of its name unless another is given."""
    return Cause(name, text, advice or _ADVICE[name], values)


def find_causes(comparison: EntryComparison, *, same_run: bool = False) -> tuple[Cause, ...]:
    """Return what explains the difference of two entries; () for entries that do not differ.

    Args:
        comparison: the two entries.
        same_run: whether one run used both, so that lines of the script are the same.
    """
    found = [*_key_causes(comparison)]
    diff = comparison.diff
    if diff is not None and not diff.is_empty:
        found += _graph_causes(comparison, diff, same_run=same_run)
    found += [make_cause(CauseName.CODE, item.text) for item in comparison.about(Subject.METADATA)]
    return tuple(found)


def find_branch_causes(comparison: EntryComparison, *, same_run: bool) -> tuple[Cause, ...]:
    """Return why two graphs that start at the same line end at different ones, () if the reason is not known."""
    diff = comparison.diff
    if diff is None:
        return ()
    cause = _value_read(diff) or (_cut_moved(diff) if same_run else None) or _mode_changed(diff)
    return () if cause is None else (cause,)


def _key_causes(comparison: EntryComparison) -> Iterator[Cause]:
    compilers, flags = comparison.about(Subject.COMPILER), comparison.about(Subject.FLAGS)
    if compilers:
        text = f"{compilers[0].text}: each version has its own directory"
        text += ", and the graph is the same" if comparison.same_graph else ""
        yield make_cause(CauseName.COMPILER, text)
    if flags:
        yield make_cause(CauseName.FLAGS, "; ".join(item.text for item in flags))


def _graph_causes(comparison: EntryComparison, diff: GraphDiff, *, same_run: bool) -> Iterator[Cause]:
    """Yield what explains the difference of two graphs: at least one cause."""
    libraries, collectives = comparison.about(Subject.LIBRARIES), comparison.about(Subject.COLLECTIVES)
    if libraries:
        yield make_cause(CauseName.CODE, f"{libraries[0].text}: a library was rebuilt")
    if collectives:
        yield make_cause(CauseName.CODE, f"another world size or replica groups: {collectives[0].text}")
    cause = (
        _value_read(diff)
        or (_cut_moved(diff) if same_run else None)
        or _mode_changed(diff)
        or _kernel_changed(diff)
        or _dtype_changed(diff)
        or _optimizer_state(diff)
        or _scalar_changed(diff)
        or _shape_changed(diff)
        or _output_kept(diff)
    )
    if cause is not None:
        yield cause
    elif not libraries and not collectives:
        yield _code_changed(diff)


def _value_read(diff: GraphDiff) -> Cause | None:
    """Return a value read that splits a graph which was one before."""
    if diff.old.cut == diff.new.cut or not is_value_read(diff.new.cut):
        return None
    old, new = diff.old.operations, diff.new.operations
    common = next(
        (number for number, (a, b) in enumerate(zip(old, new, strict=False)) if a.detail != b.detail),
        min(len(old), len(new)),
    )
    # What the program read was computed by the last operators.
    if common < _MIN_COMMON_OPERATORS or 2 * common < len(new) or common == len(old):
        return None
    before = f", up to {diff.old.cut}" if diff.old.cut else ""
    text = (
        f"{read_text(diff.new.cut)}: the graph ends there, and a graph with the same start was longer{before}"
    )
    return make_cause(CauseName.READ, text)


def _cut_moved(diff: GraphDiff) -> Cause | None:
    """Return a moved cut if the operators of one graph are the start or the end of the other."""
    pairs = [step for step in diff.steps if step.old >= 0 and step.new >= 0]
    added, removed = diff.added(), diff.removed()
    extra = added or removed
    if len(pairs) < _MIN_COMMON_OPERATORS or bool(added) == bool(removed) or _is_state_only(extra):
        return None
    first, last = pairs[0], pairs[-1]
    is_contiguous = last.old - first.old == len(pairs) - 1 and last.new - first.new == len(pairs) - 1
    is_start = first.old == first.new == 0
    is_end = last.old == len(diff.old.operations) - 1 and last.new == len(diff.new.operations) - 1
    has_changes = any(step.aspects - {Aspect.WIRING} for step in pairs)
    if not is_contiguous or not (is_start or is_end) or has_changes:
        return None
    if not diff.old.cut or not diff.new.cut or diff.old.cut == diff.new.cut:
        return None
    return make_cause(
        CauseName.CUT,
        f"the graph is {'longer' if added else 'shorter'} by {plural(len(extra), 'operator')} at its "
        f"{'end' if is_start else 'start'}, the rest is the same: it was cut at another place "
        f"({diff.old.cut} -> {diff.new.cut})",
    )


def _mode_changed(diff: GraphDiff) -> Cause | None:
    found = [operation for operation in (*diff.added(), *diff.removed()) if _TRAINING.search(operation.name)]
    for step in diff.changed():
        old, new = diff.old.operations[step.old], diff.new.operations[step.new]
        flags = set(old.constants) ^ set(new.constants)
        if _TRAINING.search(new.name) and flags <= _TRAINING_FLAGS and old.constants != new.constants:
            found.append(new)
    if not found or not _part_at(diff, found):
        return None
    names = ", ".join(sorted({operation.name for operation in found}))
    source = next((operation.source for operation in found if operation.source), "")
    text = f"only one graph has {names}{at_source(source)}: model.train() or model.eval() was called, or the code changed"
    return make_cause(CauseName.MODE, text)


def _part_at(diff: GraphDiff, operations: Sequence[OperatorCall]) -> bool:
    """Return whether the first difference of the graphs is one of these operators, or at its line."""
    step = diff.first_difference()
    if step is None:
        return False
    first = diff.new.operations[step.new] if step.new >= 0 else diff.old.operations[step.old]
    return any(each is first or (each.source and each.source == first.source) for each in operations)


def _kernel_changed(diff: GraphDiff) -> Cause | None:
    text = describe_changed_kernel(diff)
    return make_cause(CauseName.KERNEL, text) if text else None


def _dtype_changed(diff: GraphDiff) -> Cause | None:
    extra = (*diff.added(), *diff.removed())
    casts = [operation for operation in extra if operation.name in CASTS]
    steps = [step for step in diff.changed() if Aspect.DTYPE in step.aspects]
    has_inputs = any(
        change.old >= 0
        and change.new >= 0
        and diff.old.inputs[change.old].dtype != diff.new.inputs[change.new].dtype
        for change in diff.inputs
    )
    if 2 * len(casts) < len(extra) or not (steps or has_inputs or casts):
        return None
    pairs = {pair for step in steps for pair in _changed_dtypes(diff, step.old, step.new)}
    # A mask is cast to whatever type it is multiplied with.
    pairs = {pair for pair in pairs if "bool" not in pair} or pairs
    text = ", ".join(f"{old} -> {new}" for old, new in sorted(pairs)) or "casts were added or removed"
    first = next((diff.new.operations[step.new] for step in steps), casts[0] if casts else None)
    if first is not None and first.source:
        text += f", first at {first.source}"
    return make_cause(CauseName.DTYPE, text)


def _changed_dtypes(diff: GraphDiff, old: int, new: int) -> list[tuple[str, str]]:
    left, right = diff.old.operations[old].tensors, diff.new.operations[new].tensors
    return [(a.dtype, b.dtype) for a, b in zip(left, right, strict=False) if a.dtype != b.dtype]


def _is_state_only(operations: tuple[OperatorCall, ...]) -> bool:
    return bool(operations) and all(_STATE.match(operation.name) for operation in operations)


def _optimizer_state(diff: GraphDiff) -> Cause | None:
    extra = (*diff.added(), *diff.removed())
    created = [operation for operation in extra if _STATE.match(operation.name)]
    has_shapes = any(Aspect.SHAPE in step.aspects for step in diff.changed())
    if not created or 2 * len(created) < len(extra) or has_shapes:
        return None
    # Another optimizer creates state, too; but then the other graph does not have that state as inputs.
    is_new = any(_STATE.match(operation.name) for operation in diff.added())
    inputs = sum(change.new < 0 if is_new else change.old < 0 for change in diff.inputs)
    if 2 * inputs < len(created):
        return None
    return make_cause(
        CauseName.OPTIMIZER,
        f"one graph creates {plural(len(created), 'tensor')} of constants{at_source(created[0].source)}, the other has "
        f"{plural(inputs, 'more input')}: an optimizer creates its state in its first step",
    )


def _scalar_changed(diff: GraphDiff) -> Cause | None:
    aspects = frozenset(aspect for step in diff.changed() for aspect in step.aspects)
    if diff.added() or diff.removed() or diff.inputs or aspects != {Aspect.CONSTANT}:
        return None
    step = next((s for s in diff.changed() if not is_collective(diff.new.operations[s.new])), None)
    if step is None:
        return None
    operation = diff.new.operations[step.new]
    old, new = changed_constants(diff.old.operations[step.old], operation)
    text = f"only constants differ: {shorten_constant(old)} -> {shorten_constant(new)} in {operation.name}"
    return make_cause(CauseName.SCALAR, text + at_source(operation.source), values=_shown((old, new)))


def _shape_changed(diff: GraphDiff) -> Cause | None:
    if not diff.sizes or not _only_sizes_differ(diff):
        return None
    change = next(change for change in diff.inputs if change.old >= 0 and change.new >= 0)
    old, new = diff.old.inputs[change.old].shape, diff.new.inputs[change.new].shape
    return make_cause(
        CauseName.SHAPE,
        f"sizes {diff.sizes_text}: an input of {list(old)} is now of {list(new)}",
        values=tuple(str(size) for size in diff.sizes[0]),
    )


def _only_sizes_differ(diff: GraphDiff) -> bool:
    return not diff.added() and not diff.removed() and all(step.follows for step in diff.changed())


def _output_kept(diff: GraphDiff) -> Cause | None:
    more, less = diff.outputs
    if not (more or less) or any(not step.is_equal for step in diff.steps) or diff.inputs:
        return None
    return make_cause(
        CauseName.CODE,
        "the operators are the same, but "
        + (f"the graph also returns {more[0]}" if more else f"{less[0]} is no longer referenced"),
        advice="a tensor that is still referenced at the cut is an output: keep it in every step or in none "
        "(losses.append(loss) in some steps, a variable of the step before)",
    )


def _code_changed(diff: GraphDiff) -> Cause:
    step = diff.first_difference()
    where = ""
    if step is not None:
        side = diff.new.operations[step.new] if step.new >= 0 else diff.old.operations[step.old]
        where = f"; the graphs part at {side.source}" if side.source else ""
    total = max(len(diff.new.operations), 1)
    passes = has_backward(diff.old.names), has_backward(diff.new.names)
    backward = ("", f"; the backward pass is {'new' if passes[1] else 'gone'}")[passes[0] != passes[1]]
    return make_cause(
        CauseName.CODE, f"{diff.equal_count} of {total} operators are the same{where}{backward}"
    )


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A compile of a run and its graph."""

    module: str
    graph: GraphFacts


@dataclass(frozen=True, slots=True)
class SharedCause:
    """A cause and the modules of all compiles that it explains."""

    cause: Cause
    modules: tuple[str, ...]


def find_shared_causes(
    compiles: Sequence[CompiledGraph], known: Iterable[GraphFacts] = ()
) -> tuple[SharedCause, ...]:
    """Return the causes of compiles that differ from each other in one thing only, and of cuts that moved.

    Args:
        compiles: of a run, in order of time.
        known: graphs that were in the cache before, of which a compiled graph may be a part.
    """
    groups: dict[Names, list[CompiledGraph]] = defaultdict(list)
    for item in compiles:
        groups[item.graph.names].append(item)
    found = []
    for group in chain.from_iterable(map(_by_input_types, groups.values())):
        cause = find_series_cause([item.graph for item in group])
        if cause is not None:
            found.append(SharedCause(cause, tuple(dict.fromkeys(item.module for item in group))))
    return (*found, *_split_graphs(groups, {graph.names for graph in known}))


def _by_input_types(group: list[CompiledGraph]) -> Iterable[list[CompiledGraph]]:
    """Return compiles in groups whose inputs have the same data types: another type is a cause of its own."""
    found: dict[Names, list[CompiledGraph]] = defaultdict(list)
    for item in group:
        found[tuple(tensor.dtype for tensor in item.graph.inputs)].append(item)
    return found.values()


def format_values(values: Sequence[str]) -> str:
    """Return values separated by commas, the first ones if there are many."""
    more = f", and {len(values) - _SHOWN_VALUES} more" if len(values) > _SHOWN_VALUES else ""
    return ", ".join(values[:_SHOWN_VALUES]) + more


def find_series_cause(graphs: Sequence[GraphFacts]) -> Cause | None:
    """Return what graphs of the same operators show together, in order of time."""
    varying = _find_varying_size(graphs)
    if varying is None:
        return _find_varying_scalar(graphs) if len(graphs) > 1 else None
    number, axis, sizes = varying
    values = tuple(map(str, sizes))
    name = f"dimension {axis} of input {number}{_format_use(graphs[0], number)}"
    if len(sizes) >= _MIN_VARYING_VALUES:
        text = f"{name} took {len(sizes)} sizes, a compile for each"
        return make_cause(CauseName.SHAPE, text, values=values, advice=_padding_advice(sizes))
    if axis == 0 and sizes[1] < sizes[0]:
        text = f"{name} was {sizes[0]}, then {sizes[1]}, the only smaller size of the run so far"
        return make_cause(CauseName.LAST_BATCH, text, values=values)
    return None


def _find_varying_size(graphs: Sequence[GraphFacts]) -> tuple[int, int, list[int]] | None:
    """Return (input, axis, sizes in order) of the input whose size varies most; None if all are constant."""
    best: tuple[int, int, list[int]] | None = None
    for number in range(min(len(graph.inputs) for graph in graphs)):
        shapes = [graph.inputs[number].shape for graph in graphs]
        if len({len(shape) for shape in shapes}) != 1:
            continue
        for axis in range(len(shapes[0])):
            values = list(dict.fromkeys(shape[axis] for shape in shapes))
            if len(values) > 1 and (best is None or len(values) > len(best[2])):
                best = (number, axis, values)
    return best


def _format_use(graph: GraphFacts, number: int) -> str:
    for operation in graph.operations:
        if any(operand.input_number == number for operand in operation.operands):
            return f" ({operation.name}{at_source(operation.source)})"
    return ""


def _padding_advice(sizes: list[int]) -> str:
    buckets = sorted({1 << (size - 1).bit_length() for size in sizes if size > 0})
    if 1 < len(buckets) < len(sizes):
        shown = ", ".join(map(str, buckets))
        return f"pad to {max(sizes)}, one compile; or to buckets such as {shown}, {len(buckets)} compiles"
    return f"pad to {max(sizes)}: one compile"


def _find_varying_scalar(graphs: Sequence[GraphFacts]) -> Cause | None:
    for number, operation in enumerate(graphs[0].operations):
        constants = [graph.operations[number].constants for graph in graphs]
        if len({len(item) for item in constants}) != 1:
            continue
        for position in range(len(constants[0])):
            values = tuple(dict.fromkeys(item[position] for item in constants))
            if len(values) > 1:
                name = f"a number in {operation.name}{at_source(operation.source)}"
                text = f"{name} took {len(values)} values, a compile for each"
                return make_cause(CauseName.SCALAR, text, values=_shown(values))
    return None


def _shown(constants: Iterable[str]) -> Names:
    return tuple(map(shorten_constant, constants))


def _split_graphs(groups: dict[Names, list[CompiledGraph]], known: set[Names]) -> Iterator[SharedCause]:
    """Yield a graph that is two others in sequence: a cut between them exists only in some steps."""
    every = known | set(groups)
    for whole in every:
        for first in every:
            length = len(first)
            # Comparing the last name rejects most pairs without a copy of what may be thousands of names.
            if not 0 < length < len(whole) or whole[length - 1] != first[-1] or whole[:length] != first:
                continue
            rest = whole[length:]
            modules = [item.module for names in (whole, first, rest) for item in groups.get(names, ())]
            if rest not in every or len(whole) < _MIN_SPLIT_OPERATORS or not modules:
                continue
            cuts = [item.graph.cut for names in (whole, first) for item in groups.get(names, ())[:1]]
            shown = " and ".join(dict.fromkeys(cut for cut in cuts if cut))
            text = (
                f"a graph of {len(whole)} operators is two others, of {len(first)} and {len(rest)}, in sequence: "
                "a cut is there in some steps only" + (f" ({shown})" if shown else "")
            )
            yield SharedCause(make_cause(CauseName.CUT, text), tuple(dict.fromkeys(modules)))
            return
