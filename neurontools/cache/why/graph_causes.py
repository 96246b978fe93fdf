"""The causes that the difference of two graphs shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from neurontools.cache.tables import counted
from neurontools.cache.why.cause import (
    CUT_ADVICE,
    DROP_LAST_ADVICE,
    SCALAR_ADVICE,
    Cause,
    CauseName,
    Confidence,
)
from neurontools.cache.why.compare import Subject, changed_constants, is_collective
from neurontools.cache.why.diff import Aspect
from neurontools.cache.why.diff_text import shortened
from neurontools.cache.why.partners import CASTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.graphs.graph_facts import Operation
    from neurontools.cache.why.compare import Comparison
    from neurontools.cache.why.diff import GraphDiff

_TRAINING = re.compile(r"dropout|bernoulli|rrelu|batch_norm|batch-norm|rng", re.IGNORECASE)
_BACKWARD = re.compile(r"backward|_grad|-grad|select_and_scatter")
_STATE = re.compile(r"aten\.(zeros|full|ones|empty)(_like)?\.")
_FLAGS_OF_TRAINING = frozenset({"True", "False"})
_FEWEST_OF_A_CUT = 2
# Of a forward pass whose backward pass comes later, several activations are still held at the cut.
_FEWEST_SAVED = 2


def causes_of_graphs(comparison: Comparison, diff: GraphDiff, *, together: bool = True) -> tuple[Cause, ...]:
    """Return what explains the difference of two graphs that differ: one cause at least.

    Args:
        comparison: the two entries.
        diff: what differs in their graphs.
        together: whether one run may have used both; False where it is known that none did.
    """
    return tuple(_told(comparison, diff, together=together)) or (_code(diff),)


def _told(comparison: Comparison, diff: GraphDiff, *, together: bool) -> Iterator[Cause]:
    alone = not comparison.about(Subject.COMPILER, Subject.FLAGS)
    libraries = comparison.about(Subject.LIBRARIES)
    if libraries:
        yield Cause(
            CauseName.LIBRARY,
            Confidence.CERTAIN if len(comparison.differences) == len(libraries) else Confidence.LIKELY,
            libraries[0].text,
            "a library that is built anew makes every graph that calls it new; load the same file in all runs",
        )
    collectives = comparison.about(Subject.COLLECTIVES)
    if collectives:
        yield Cause(
            CauseName.WORLD,
            Confidence.LIKELY,
            collectives[0].text,
            "another world size is another graph; compile once for each size",
        )
    batch = (_last_batch,) if together else ()
    for tell in (_cut_moved, _training, _dtype, _state, _scalar, *batch, _shape, _kept):
        cause = tell(diff, alone=alone)
        if cause is not None:
            yield cause
            return


def _cut_moved(diff: GraphDiff, *, alone: bool) -> Cause | None:
    """Return a moved cut where the operators of one graph stand in one piece at an end of the other."""
    del alone
    pairs = [step for step in diff.steps if step.old >= 0 and step.new >= 0]
    added, removed = diff.added(), diff.removed()
    if len(pairs) < _FEWEST_OF_A_CUT or bool(added) == bool(removed) or _state_only(added or removed):
        return None
    first, last = pairs[0], pairs[-1]
    in_one_piece = last.old - first.old == len(pairs) - 1 and last.new - first.new == len(pairs) - 1
    at_an_end = (first.old == first.new == 0) or (
        last.old == len(diff.old.operations) - 1 and last.new == len(diff.new.operations) - 1
    )
    differing = sum(bool(step.aspects - {Aspect.WIRING}) for step in pairs)
    if not in_one_piece or not at_an_end or differing or _backward_only(diff, added or removed):
        return None
    if diff.old.cut and diff.old.cut == diff.new.cut:
        return None
    longer = "longer" if added else "shorter"
    where = "end" if first.old == first.new == 0 else "start"
    cuts = f" ({diff.old.cut} -> {diff.new.cut})" if diff.old.cut and diff.new.cut else ""
    return Cause(
        CauseName.CUT_MOVED,
        Confidence.LIKELY,
        f"the graph is {longer} by {counted(len(added or removed), 'operator', 'operators')} at its {where}, the rest is the same: "
        f"it was cut at another place{cuts}",
        CUT_ADVICE,
    )


def _backward_only(diff: GraphDiff, extra: tuple[Operation, ...]) -> bool:
    """Whether the longer graph goes on with a backward pass and the shorter one keeps nothing for one."""
    shorter = diff.old if diff.added() else diff.new
    has = any(_BACKWARD.search(operation.name) for operation in extra)
    if not has or any(_BACKWARD.search(name) for name in shorter.names):
        return False
    last = len(shorter.operations) - 1
    kept = sum(0 <= output.producer < last for output in shorter.outputs)
    return kept < _FEWEST_SAVED


def _training(diff: GraphDiff, *, alone: bool) -> Cause | None:
    del alone
    extra = (*diff.added(), *diff.removed())
    seen = [operation for operation in extra if _TRAINING.search(operation.name)]
    for step in diff.changed():
        old, new = diff.old.operations[step.old], diff.new.operations[step.new]
        if _TRAINING.search(new.name) and set(old.constants) ^ set(new.constants) <= _FLAGS_OF_TRAINING:
            seen += [new] if old.constants != new.constants else []
    backward = _has_backward(diff.old.names) != _has_backward(diff.new.names)
    if not seen and not backward:
        return None
    shown = ", ".join(sorted({operation.name for operation in seen})) or "the backward pass"
    where = next((operation.source for operation in seen if operation.source), "")
    return Cause(
        CauseName.TRAINING,
        Confidence.LIKELY,
        f"one graph is of training, the other of evaluation, as {shown} shows"
        + (f" at {where}" if where else ""),
        "one compile for each mode is normal; more of them mean that model.train() and model.eval() are switched "
        "in the middle of a step",
    )


def _has_backward(names: tuple[str, ...]) -> bool:
    return any(_BACKWARD.search(name) for name in names)


def _dtype(diff: GraphDiff, *, alone: bool) -> Cause | None:
    casts = [operation for operation in (*diff.added(), *diff.removed()) if operation.name in CASTS]
    steps = [step for step in diff.changed() if Aspect.DTYPE in step.aspects]
    inputs = [
        change
        for change in diff.inputs
        if change.old >= 0
        and change.new >= 0
        and diff.old.inputs[change.old].dtype != diff.new.inputs[change.new].dtype
    ]
    extra = len(diff.added()) + len(diff.removed())
    if not steps and not inputs and 2 * len(casts) <= extra:
        return None
    pairs = {pair for step in steps for pair in _dtypes(diff, step.old, step.new)}
    shown = ", ".join(f"{a} -> {b}" for a, b in sorted(pairs)) or "casts were added or removed"
    first = next((diff.new.operations[step.new] for step in steps), casts[0] if casts else None)
    where = f", first at {first.source}" if first is not None and first.source else ""
    return Cause(
        CauseName.DTYPE,
        Confidence.CERTAIN if alone and not diff.added() and not diff.removed() else Confidence.LIKELY,
        f"{shown}{where}",
        "use one setting of autocast (XLA_USE_BF16, torch.autocast, .to(dtype)) in all steps; "
        "look for a Python number or a new tensor of the default type",
    )


def _dtypes(diff: GraphDiff, old: int, new: int) -> list[tuple[str, str]]:
    left, right = diff.old.operations[old], diff.new.operations[new]
    tensors = zip(
        [*(operand.tensor for operand in left.operands), *left.results],
        [*(operand.tensor for operand in right.operands), *right.results],
        strict=False,
    )
    return [(a.dtype, b.dtype) for a, b in tensors if a.dtype != b.dtype]


def _state_only(operations: tuple[Operation, ...]) -> bool:
    return bool(operations) and all(_STATE.match(operation.name) for operation in operations)


def _state(diff: GraphDiff, *, alone: bool) -> Cause | None:
    del alone
    extra = (*diff.added(), *diff.removed())
    made = [operation for operation in extra if _STATE.match(operation.name)]
    if not made or 2 * len(made) < len(extra) or Aspect.SHAPE in _aspects(diff):
        return None
    # Another optimizer makes its state, too; then the other graph does not have that state at all.
    is_made_anew = any(_STATE.match(operation.name) for operation in diff.added())
    had = sum(change.new < 0 if is_made_anew else change.old < 0 for change in diff.inputs)
    if 2 * had < len(made):
        return None
    where = f" at {made[0].source}" if made[0].source else ""
    return Cause(
        CauseName.STATE,
        Confidence.LIKELY,
        f"one graph makes {counted(len(made), 'tensor', 'tensors')} of constants{where}, the other has "
        f"{counted(had, 'more input', 'more inputs')}: an optimizer makes its state in its first step",
        "two compiles, one for the first step and one for the rest, are normal",
    )


def _aspects(diff: GraphDiff) -> frozenset[Aspect]:
    return frozenset(aspect for step in diff.changed() for aspect in step.aspects)


def _scalar(diff: GraphDiff, *, alone: bool) -> Cause | None:
    if diff.added() or diff.removed() or diff.inputs or _aspects(diff) != {Aspect.CONSTANT}:
        return None
    changed = [step for step in diff.changed() if not is_collective(diff.new.operations[step.new])]
    if not changed:
        return None
    operation = diff.new.operations[changed[0].new]
    old, new = changed_constants(diff.old.operations[changed[0].old], operation)
    where = f" at {operation.source}" if operation.source else ""
    return Cause(
        CauseName.SCALAR,
        Confidence.CERTAIN if alone else Confidence.LIKELY,
        f"only constants differ: {shortened(old)} -> {shortened(new)} in {operation.name}{where}",
        SCALAR_ADVICE,
        (old, new),
    )


def _last_batch(diff: GraphDiff, *, alone: bool) -> Cause | None:
    del alone
    if not diff.sizes or not _is_smaller_batch(diff):
        return None
    return Cause(
        CauseName.LAST_BATCH,
        Confidence.LIKELY if _all_follow(diff) else Confidence.POSSIBLE,
        f"the first dimension is smaller ({_sizes(diff)}) and all else is the same: the rest of the data at an epoch's end, "
        "or a smaller batch size",
        DROP_LAST_ADVICE,
        tuple(str(size) for size in diff.sizes[0]),
    )


def _shape(diff: GraphDiff, *, alone: bool) -> Cause | None:
    if not diff.sizes:
        return None
    changes = [change for change in diff.inputs if change.old >= 0 and change.new >= 0]
    old, new = (
        graph.inputs[number].shape
        for graph, number in ((diff.old, changes[0].old), (diff.new, changes[0].new))
    )
    return Cause(
        CauseName.SHAPE,
        Confidence.CERTAIN if alone and _all_follow(diff) else Confidence.LIKELY,
        f"sizes {_sizes(diff)}: an input of {list(old)} is now of {list(new)}",
        "pad to one size, or to a few fixed sizes (buckets): every new shape is a new graph",
        tuple(str(size) for size in diff.sizes[0]),
    )


def _all_follow(diff: GraphDiff) -> bool:
    return not diff.added() and not diff.removed() and all(step.follows for step in diff.changed())


def _sizes(diff: GraphDiff) -> str:
    return ", ".join(f"{a} -> {b}" for a, b in diff.sizes)


def _is_smaller_batch(diff: GraphDiff) -> bool:
    """Whether the inputs that differ do so in their first dimension, all by the same two sizes, the new one smaller."""
    if len(diff.sizes) != 1 or diff.sizes[0][1] >= diff.sizes[0][0]:
        return False
    pairs = [
        (diff.old.inputs[change.old].shape, diff.new.inputs[change.new].shape)
        for change in diff.inputs
        if change.old >= 0 and change.new >= 0
    ]
    return all(old[1:] == new[1:] for old, new in pairs)


def _kept(diff: GraphDiff, *, alone: bool) -> Cause | None:
    more, less = diff.outputs
    if not (more or less) or any(not step.is_equal for step in diff.steps) or diff.inputs:
        return None
    return Cause(
        CauseName.KEPT,
        Confidence.CERTAIN if alone else Confidence.LIKELY,
        "the operators are the same, but "
        + (f"the graph also gives {more[0]}" if more else f"nobody holds {less[0]}"),
        "a tensor that is still referenced at the cut is an output: keep it in every step or in none "
        "(losses.append(loss) in some steps, a variable of the step before)",
    )


def _code(diff: GraphDiff) -> Cause:
    step = diff.parting()
    side = None
    if step is not None:
        side = diff.new.operations[step.new] if step.new >= 0 else diff.old.operations[step.old]
    where = f"; the graphs part at {side.source}" if side is not None and side.source else ""
    total = max(len(diff.new.operations), 1)
    return Cause(
        CauseName.CODE,
        Confidence.LIKELY,
        f"{diff.equal_count} of {total} operators are the same{where}",
        "another computation needs another compile; see the diff for what changed",
    )
