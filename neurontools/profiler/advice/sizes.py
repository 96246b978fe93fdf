"""Sizes that do not suit the Tensor engine: widths beside a multiple of its 128 rows, and batches that leave it idle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.base.units import format_percent
from neurontools.compiler.engines.lowering.families import family
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.graph import View, reads
from neurontools.compiler.resizing import batch_sizes, resize
from neurontools.profiler.advice.findings import Advice, Evidence, Silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledProgram

WIDTHS, BATCH = "widths", "batch"
_TILE = 128
_LARGEST_LOSS, _LARGEST_GROWTH = 0.05, 0.125  # a model that is much smaller or larger is another model
_FACTORS = (2, 4, 8)
_BETTER = 0.95
_MOST_SIZES = 4
_PRODUCTS = frozenset({"mm", "addmm", "linear", "_addmm_activation"})


def widths(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield sizes of weights for which a multiple of 128 near by is faster."""
    sizes = _weight_sizes(program)
    odd = sorted(size for size in sizes if size > _TILE and size % _TILE)
    bases = [size for size in odd if not any(size % other == 0 for other in odd if other < size)]
    if not bases:
        yield Silent(WIDTHS, "every width of a weight is a multiple of 128, or less")
    for base in sorted(bases, key=lambda size: -len(sizes[size]))[:_MOST_SIZES]:
        yield _width(program, base, sizes)


def _width(program: ProfiledProgram, base: int, sizes: Mapping[int, list[int]]) -> Finding:
    below = base // _TILE * _TILE
    least, most = base * (1 - _LARGEST_LOSS), base * (1 + _LARGEST_GROWTH)
    reasons = []
    if base in _counts(program):
        least = base  # a vocabulary or classes: each row has a meaning
    for new in (below, below + _TILE):
        if not least <= new <= most:
            continue
        related = {size: size // base * new for size in sorted(sizes) if size % base == 0}
        trial = program.trial(lambda related=related: resize(program.graph, related))  # type: ignore[misc]
        if trial.gain is None or not trial.is_worth:
            tiles, then = -(-base // _TILE), -(-new // _TILE)
            reason = f"{tiles} tiles of {_TILE} either way" if tiles == then else f"{then} tiles, not {tiles}"
            reasons.append(f"{base} -> {new}: {reason}, {trial.words}")
            continue
        others = [
            f"{size // base * new} instead of {size} ({size // base} x {base})"
            for size in related
            if size > base
        ]
        filled = f"product with a width of {base}: the last of {-(-base // _TILE)} tiles of {_TILE} holds {base % _TILE}"
        return Advice(
            WIDTHS,
            f"Use a width of {new}, a multiple of the {_TILE} rows of the Tensor engine, instead of {base}",
            f"where the sizes of the model are set, write {', '.join([f'{new} instead of {base}', *others])}",
            trial.gain,
            f"engine model, this graph with these sizes: {trial.words}",
            program.lines([position for size in related for position in sizes[size]], filled),
        )
    if not reasons:
        return Silent(WIDTHS, f"{base}: {below} would be another model, and {below + _TILE} too")
    return Silent(WIDTHS, "; ".join(reasons))


def _weight_sizes(program: ProfiledProgram) -> dict[int, list[int]]:
    """Return the sizes of weights, each with the products that use them."""
    inputs = set(program.graph.inputs)
    is_weight: dict[int, bool] = {}
    found: dict[int, list[int]] = {}
    for position, node in enumerate(program.graph.nodes):
        if family(node.op) not in _PRODUCTS:
            continue
        views = [arg for arg in node.args if isinstance(arg, View)]
        if len(views) < 2:
            continue
        left, right = views[-2:]
        is_weight.setdefault(left.slot, False)  # data: a later product, of the gradient, has it on the right
        if right.slot in inputs and is_weight.setdefault(right.slot, True) and len(right.shape) == 2:
            for size in set(right.shape):
                found.setdefault(size, []).append(position)
    return found


def _counts(program: ProfiledProgram) -> set[int]:
    """Return sizes that count things of the data, which cannot be fewer: rows of tables, classes of a loss."""
    found = set()
    for node in program.graph.nodes:
        views = reads(node)
        if family(node.op) == "embedding":
            found.add(views[0].shape[0])
        elif family(node.op) in {"_log_softmax", "nll_loss_forward"} and views[0].shape:
            found.add(views[0].shape[-1])
    return found


def batch(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield a larger batch if it takes less time a sample."""
    known = batch_sizes(program.graph)
    if len(known) != 1:
        yield Silent(BATCH, "the batch does not follow from the inputs of the graph")
        return
    (now,) = known
    if now == 1:
        reason = "a batch of 1 looks like any other dimension of 1: capture the program with a batch of 2, and ask again"
        yield Silent(BATCH, reason)
        return
    best, best_factor, reason = None, 1, ""
    for factor in _FACTORS:
        trial = program.trial_of_batch(now, now * factor)
        before_ns = program.total_ns - (best.ns if best else 0)
        if trial.gain is None or program.total_ns - trial.ns > _BETTER * before_ns:
            reason = f"{now} -> {now * factor}: {trial.words}" + (
                " for the same samples" if trial.gain else ""
            )
            break
        best, best_factor = trial, factor
    if best is None or best.gain is None:
        yield Silent(BATCH, reason)
        return
    new = now * best_factor
    tensor = program.neff.cost.engine_busy_ns(Engine.TENSOR) / max(1, program.total_ns)
    yield Advice(
        BATCH,
        f"Use a batch of {new} instead of {now}",
        f"where the batch is set (batch_size of the data loader), write {new} instead of {now}; the learning rate may"
        " need to follow, or accumulate fewer gradients",
        replace(best.gain, samples=now),
        f"engine model, this graph with a batch of {new}, for the same samples: {best.words}",
        (
            Evidence(
                f"the Tensor engine works {format_percent(tensor)} of the step; launches and loads of weights do not grow with the batch"
            ),
        ),
    )
