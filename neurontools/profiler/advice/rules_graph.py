"""Rules about the graph of a program: what a changed graph would gain by the engine model."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.base.units import format_binary_size, format_ns, format_percent
from neurontools.compiler.attention_forms import fuse_attention
from neurontools.compiler.engines.dma import RELOAD_OPCODE, SPILL_OPCODE
from neurontools.compiler.engines.lowering.families import family
from neurontools.compiler.engines.placement import CUSTOM_OPCODE, Engine, is_attention, split_name
from neurontools.compiler.graph import View, reads
from neurontools.compiler.graph_nodes import BACKWARD
from neurontools.compiler.options import names_flag
from neurontools.compiler.resizing import ChangeError, batch_sizes, resize
from neurontools.compiler.what_if import Change, apply_change
from neurontools.compiler.work import item_bytes, numel, products, written
from neurontools.profiler.advice.findings import Advice, Evidence, Silent
from neurontools.profiler.advice.subject import ProfiledProgram, drop_copies, merge_copies, work_in_halves
from neurontools.profiler.analysis.programs import path_of_neff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.graph import Graph, Node
    from neurontools.profiler.advice.findings import Finding


X = 1


ATTENTION = "attention"
_SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
_MASKS = frozenset({"masked_fill", "where", "add"})
_AFTER_SOFTMAX = 4  # dropout, the copy of values, the product, the copy of its result
_DROPOUTS = frozenset({"bernoulli", "native_dropout"})


def attention(program: ProfiledProgram) -> list[Finding]:
    """Advise fused attention where it is written out, if that is faster."""
    nodes = program.graph.nodes
    try:
        fused = fuse_attention(program.graph)
    except ChangeError:
        has_fused = any(is_attention(node.op) for node in nodes)
        return [
            Silent(ATTENTION, "attention is fused already" if has_fused else "no attention in this graph")
        ]
    kept = {id(node) for node in fused.nodes}
    removed = [position for position, node in enumerate(nodes) if id(node) not in kept]
    softmaxes = [position for position in removed if family(nodes[position].op) in _SOFTMAX]
    is_causal = any(_hides_positions(nodes[position]) for position in removed)
    trial = program.trial(lambda: fuse_attention(program.graph, is_causal=True) if is_causal else fused)
    if trial.gain is None or not trial.is_worth:
        source = os.path.basename(nodes[softmaxes[0]].source)
        return [
            Silent(ATTENTION, f"written out{' at ' + source if source else ''}, but fused: {trial.words}")
        ]
    last = max(softmaxes) + _AFTER_SOFTMAX
    # The copy of the result may be at a later line, which stays.
    forward = [
        position
        for position in removed
        if position <= last
        and not nodes[position].layer.endswith(BACKWARD)
        and family(nodes[position].op) != "clone"
    ]
    return [
        Advice(
            ATTENTION,
            "Use scaled_dot_product_attention instead of writing attention out",
            f"replace {_line_range([nodes[position].source for position in forward])} by"
            f" {_attention_call({family(nodes[position].op) for position in removed}, is_causal=is_causal)}",
            trial.gain,
            f"engine model, this graph with one{' causal' if is_causal else ''} kernel for each attention and one for its"
            f" gradient: {trial.words}",
            tuple(
                replace(line, text="product, softmax and product", share=program.share(removed))
                for line in program.lines(softmaxes)
            ),
        )
    ]


def _hides_positions(node: Node) -> bool:
    """Return whether a call applies a mask of positions by positions, the same for all samples and heads."""
    return family(node.op) in _MASKS and any(
        len(view.shape) > 1
        and view.shape[-1] == view.shape[-2] > 1
        and all(size == 1 or stride == 0 for size, stride in zip(view.shape[:-2], view.strides, strict=False))
        for view in reads(node)
    )


def _attention_call(names: set[str], *, is_causal: bool) -> str:
    """Return the call to write."""
    dropout = ", dropout_p=..." if names & _DROPOUTS else ""
    call = f"torch.nn.functional.scaled_dot_product_attention(q, k, v{dropout}"
    if is_causal:
        return f"{call}, is_causal=True), if the mask hides later positions, else with attn_mask=mask"
    return f"{call}, attn_mask=mask)" if names & _MASKS else f"{call})"


def _line_range(sources: Sequence[str]) -> str:
    """Return the lines of one file that sources name, as words: `model.py, lines 14 to 17,`."""
    by_file: dict[str, set[int]] = {}
    for source in sources:
        if match := re.fullmatch(r"(.*):(\d+)", source):
            by_file.setdefault(os.path.basename(match[1]), set()).add(int(match[2]))
    if not by_file:
        return "product, softmax and product"
    file, lines = max(by_file.items(), key=lambda pair: len(pair[1]))
    first, last = min(lines), max(lines)
    return f"{file}, line {first}," if first == last else f"{file}, lines {first} to {last},"


DTYPE = "dtype"
_CAST_FLAGS = "--auto-cast=matmult", "--auto-cast-type=bf16"
_CAST = f'start the program with NEURON_CC_FLAGS="{" ".join(_CAST_FLAGS)}"'
_WHOLE = "write model.to(torch.bfloat16) and give it bfloat16 data"


def data_types(program: ProfiledProgram) -> list[Finding]:
    """Advise bfloat16 for a graph whose products run in float32."""
    nodes = program.graph.nodes
    slow = [
        position
        for position, node in enumerate(nodes)
        if products(node) and written(node)[0].dtype == "float32"
    ]
    if not slow:
        return [Silent(DTYPE, "no matrix product in float32")]
    if names_flag(program.neff.flags, "--auto-cast"):
        return [
            Silent(DTYPE, "products are written in float32, but --auto-cast decides what the device uses")
        ]
    cast = program.trial(flags=_CAST_FLAGS)
    whole = program.trial(lambda: apply_change(program.graph, Change(dtype="bf16")))
    # Weights in bfloat16 lose small updates, so for training they are only the second choice.
    first, words, how = cast, _CAST, "products in bfloat16, weights and the rest in float32"
    if not program.trains and whole.ns > cast.ns:
        first, words, how = whole, _WHOLE, "all tensors in bfloat16"
    if first.gain is None or not first.is_worth:
        return [Silent(DTYPE, f"float32 products, but in bfloat16: {first.words}")]
    choice = f"; or {_WHOLE}: -{format_ns(whole.ns)}" if whole.ns > first.ns else ""
    return [
        Advice(
            DTYPE,
            "Run matrix products in bfloat16 instead of float32",
            f"{words} ({how}){choice}; compare the loss before you rely on it",
            first.gain,
            f"engine model, this graph with {how}: {first.words}",
            program.lines(slow, "float32 product"),
        )
    ]


WIDTHS, BATCH = "widths", "batch"
_TILE = 128
_LARGEST_LOSS, _LARGEST_GROWTH = 0.05, 0.125  # a model that is much smaller or larger is another model
_FACTORS = (2, 4, 8)
_BETTER = 0.95
_MOST_SIZES = 4
_PRODUCTS = frozenset({"mm", "addmm", "linear", "_addmm_activation"})


def widths(program: ProfiledProgram) -> list[Finding]:
    """Advise a near multiple of 128 for sizes of weights, if that is faster."""
    sizes = _weight_sizes(program)
    odd = sorted(size for size in sizes if size > _TILE and size % _TILE)
    bases = [size for size in odd if not any(size % other == 0 for other in odd if other < size)]
    if not bases:
        return [Silent(WIDTHS, "every width of a weight is a multiple of 128, or less")]
    most_used = sorted(bases, key=lambda size: -len(sizes[size]))[:_MOST_SIZES]
    return [_width(program, base, sizes) for base in most_used]


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
    products: dict[int, list[int]] = {}
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
                products.setdefault(size, []).append(position)
    return products


def _counts(program: ProfiledProgram) -> set[int]:
    """Return sizes that count things of the data, which cannot be fewer: rows of tables, classes of a loss."""
    counts = set()
    for node in program.graph.nodes:
        views = reads(node)
        if family(node.op) == "embedding":
            counts.add(views[0].shape[0])
        elif family(node.op) in {"_log_softmax", "nll_loss_forward"} and views[0].shape:
            counts.add(views[0].shape[-1])
    return counts


def batch(program: ProfiledProgram) -> list[Finding]:
    """Advise a larger batch if it takes less time a sample."""
    batches = batch_sizes(program.graph)
    if len(batches) != 1:
        return [Silent(BATCH, "the batch does not follow from the inputs of the graph")]
    (now,) = batches
    if now == 1:
        reason = "a batch of 1 looks like any other dimension of 1: capture the program with a batch of 2, and ask again"
        return [Silent(BATCH, reason)]
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
        return [Silent(BATCH, reason)]
    new = now * best_factor
    tensor = program.neff.cost.engine_busy_ns(Engine.TENSOR) / max(1, program.total_ns)
    return [
        Advice(
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
    ]


COPIES, LAYOUT = "small-copies", "layout"
_COPIES = frozenset({"clone", "copy"})
_SMALL_BYTES = 64 * 1024
_MANY = 8
_BATCHED_PRODUCTS = frozenset({"bmm", "baddbmm"})


def small_copies(program: ProfiledProgram) -> list[Finding]:
    """Advise one copy instead of many small ones at a line of the program, if that is faster."""
    groups: dict[tuple[str, str], list[int]] = {}
    for position, node in enumerate(program.graph.nodes):
        views = written(node) if family(node.op) in _COPIES else ()
        if views and _nbytes(views[0]) <= _SMALL_BYTES:
            groups.setdefault((node.source, node.op), []).append(position)
    many = [group for group in groups.values() if len(group) >= _MANY]
    if not many:
        return [Silent(COPIES, f"no line makes {_MANY} copies of {format_binary_size(_SMALL_BYTES)} or less")]
    return [_copies_of_a_line(program, group) for group in many]


def _copies_of_a_line(program: ProfiledProgram, group: Sequence[int]) -> Finding:
    node = program.graph.nodes[group[0]]
    where = f"at {os.path.basename(node.source)}" if node.source else "by the program"
    trial = program.trial(lambda: merge_copies(program.graph, group))
    if trial.gain is None or not trial.is_worth:
        return Silent(COPIES, f"{len(group)} small copies {where}, but one of all: {trial.words}")
    views = [written(program.graph.nodes[position])[0] for position in group]
    size, total = format_binary_size(max(map(_nbytes, views))), sum(map(numel, views))
    return Advice(
        COPIES,
        f"Copy once instead of {len(group)} times",
        f"{where}, keep the tensors as parts of one of {total:,} elements, and copy that: a loop of copies becomes one"
        " clone() or copy_()",
        trial.gain,
        f"engine model, this graph with one copy of {format_binary_size(sum(map(_nbytes, views)))}: {trial.words}",
        program.lines(group, f"copy of {size} or less"),
    )


def _nbytes(view: View) -> int:
    return numel(view) * item_bytes(view.dtype)


def layouts(program: ProfiledProgram) -> list[Finding]:
    """Advise data in the order of dimensions that the program copies it into, if that is faster."""
    turned = _turning(program.graph)
    if not turned:
        return [Silent(LAYOUT, "no copy changes the order of dimensions of a whole tensor")]
    trial = program.trial(lambda: drop_copies(program.graph, turned), is_bound=True)
    count = f"{len(turned)} {'copy' if len(turned) == 1 else 'copies'} into another order of dimensions"
    if trial.gain is None or not trial.is_worth:
        return [Silent(LAYOUT, f"{count}, but without: {trial.words}")]
    lines = program.lines(turned, "copy into another order of dimensions")
    line = f"at {os.path.basename(lines[0].source)}" if lines[0].source else "in the program"
    shape = "x".join(map(str, written(program.graph.nodes[min(turned)])[0].shape))
    is_data = all(slot in program.graph.inputs for slot in turned.values())
    where = (
        "store the data in that order, or permute it before .to(device)"
        if is_data
        else "make it in that order"
    )
    return [
        Advice(
            LAYOUT,
            "Keep tensors in the order of dimensions in which they are read",
            f"{line}, a permuted tensor is copied to {shape}, by contiguous() for instance; {where}, and leave the copy out",
            trial.gain,
            f"engine model, this graph without {count}: {trial.words}",
            lines,
        )
    ]


def _turning(graph: Graph) -> dict[int, int]:
    """Return the copies of whole buffers into another order of dimensions, each with the buffer that it copies."""
    around = [(*reads(node), *written(node)) for node in graph.nodes if family(node.op) in _BATCHED_PRODUCTS]
    by_attention = {view.slot for views in around for view in views}
    copied = {}
    for position, node in enumerate(graph.nodes):
        if family(node.op) != "clone" or not node.results or node.results[0] is None:
            continue
        source, made = reads(node)[0], node.results[0]
        is_whole = graph.slots[source.slot].nbytes == graph.slots[made.slot].nbytes == _nbytes(made)
        if is_whole and _order(source) != _order(made) and not {source.slot, made.slot} & by_attention:
            copied[position] = source.slot
    return copied


def _order(view: View) -> tuple[int, ...]:
    """Return the dimensions of a tensor in the order in which they lie, those of size 1 left out."""
    real = [axis for axis, size in enumerate(view.shape) if size > 1]
    return tuple(sorted(real, key=lambda axis: -view.strides[axis]))


SPILLS, OVERLAP = "spills", "overlap"
_PARTS = (2, 4, 8)
_SMALLEST_PART = 0.02


def spills(program: ProfiledProgram) -> list[Finding]:
    """Advise smaller batches, run one after the other, if values then stay in SBUF and the sum is faster."""
    cost = program.neff.cost
    if not cost.spill_save_bytes:
        return [Silent(SPILLS, "no value left SBUF for lack of room")]
    moved = [row for row in cost.rows if row.opcode in {SPILL_OPCODE, RELOAD_OPCODE}]
    saved, reloaded = map(format_binary_size, (cost.spill_save_bytes, cost.spill_reload_bytes))
    share = sum(row.busy_ns for row in moved) / max(1, program.total_ns)
    seen = Evidence(f"{saved} spilled to HBM, {reloaded} reloaded", count=len(moved), share=share)
    batches = batch_sizes(program.graph)
    now = batches[0] if len(batches) == 1 else 1
    trials = {parts: program.trial_of_batch(now, now // parts) for parts in _PARTS if now % parts == 0}
    best = max(trials, key=lambda parts: trials[parts].ns, default=1)
    if best == 1 or (gain := trials[best].gain) is None or not trials[best].is_worth:
        result = f"{best} smaller batches: {trials[best].words}" if trials else "the batch cannot be divided"
        return [Silent(SPILLS, f"{seen.text}, {format_percent(share)} of the step, but {result}")]
    return [
        Advice(
            SPILLS,
            f"Run {best} batches of {now // best} instead of one of {now}, so that values stay in SBUF",
            f"set the batch to {now // best} and run {best} in turn; in training, add up their gradients before"
            " optimizer.step()",
            replace(gain, samples=now),
            f"engine model, {best} executions of this graph with a batch of {now // best}: {trials[best].words}",
            (seen, *program.lines([row.operator for row in moved])),
        )
    ]


def overlap(program: ProfiledProgram) -> list[Finding]:
    """Advise two halves of the batch in turn, if engines that wait for each other then work at once."""
    parts = _critical_parts(program)
    chain = ", ".join(f"{engine} {format_percent(part)}" for engine, part in parts)
    if len(parts) < 2:
        return [Silent(OVERLAP, f"one engine is the whole critical path: {chain}")]
    batches = batch_sizes(program.graph)
    if len(batches) != 1 or batches[0] % 2:
        return [Silent(OVERLAP, f"the critical path runs through {chain}, but the batch cannot be halved")]
    trial = program.trial(lambda: work_in_halves(program.graph, batches[0]))
    if trial.gain is None or not trial.is_worth:
        return [
            Silent(
                OVERLAP,
                f"the critical path runs through {chain}; two halves of the batch in turn: {trial.words}",
            )
        ]
    (first, _), (second, _), *_ = parts
    return [
        Advice(
            OVERLAP,
            f"Work on two halves of the batch in turn, so that {first} and {second} engines overlap",
            f"split the batch of {batches[0]} with a, b = x.chunk(2), and write each line of a layer for both halves"
            " (a = f(a); b = f(b)) before the next one",
            trial.gain,
            f"engine model, this graph with each operator for one half and then for the other: {trial.words}",
            tuple(Evidence(f"the critical path runs through {engine}", share=part) for engine, part in parts),
        )
    ]


def _critical_parts(program: ProfiledProgram) -> list[tuple[str, float]]:
    """Return the engines that the critical path runs through, with their parts of it, the largest first."""
    engines = path_of_neff(program.neff, device=program.device).engines
    return [(engine.name, engine.share) for engine in engines if engine.share >= _SMALLEST_PART]


KERNELS = "custom-operators"
_SLOWER = 4
"""Factor above the time of copies in pieces from which accesses to elements must be the cause: the model has no other."""


def kernels(program: ProfiledProgram) -> list[Finding]:
    """Advise TCM for custom operators that take much longer than copies of their tensors through it."""
    spent = {row.operator: row.busy_ns for row in program.neff.cost.rows if row.opcode == CUSTOM_OPCODE}
    by_op: dict[str, list[int]] = {}
    for position in spent:
        by_op.setdefault(program.graph.nodes[position].op, []).append(position)
    if not by_op:
        return [Silent(KERNELS, "no custom operator in this graph")]
    return [
        _kernel(program, op, positions, sum(spent[position] for position in positions))
        for op, positions in by_op.items()
    ]


def _kernel(program: ProfiledProgram, op: str, positions: Sequence[int], now_ns: int) -> Finding:
    namespace, name = split_name(op)
    copied = {position: _copied_ns(program, position) for position in positions}
    copied_ns = sum(copied.values())
    times = f"{format_ns(now_ns)}, and {format_ns(copied_ns)} would copy its tensors through TCM"
    if now_ns < _SLOWER * copied_ns:
        return Silent(KERNELS, f"{namespace}::{name} takes {times}")
    trial = program.trial(custom=copied)
    if trial.gain is None or not trial.is_worth:
        return Silent(KERNELS, f"{namespace}::{name} takes {times}: {trial.words}")
    source = os.path.basename(program.graph.nodes[positions[0]].source)
    return Advice(
        KERNELS,
        f"Let {namespace}::{name} copy its tensors to TCM in pieces instead of accessing single elements",
        f"in the C++ source of {name}{f' (called at {source})' if source else ''}, replace accessor() by tcm_accessor()"
        f" and copies of {gpsimd.rates().piece_bytes} bytes; neuron-customop bench shows the line",
        trial.gain,
        f"it takes {times} (rates of GPSIMD); engine model, this graph with that: {trial.words}",
        program.lines(positions, f"{namespace}::{name} on GpSimd"),
    )


def _copied_ns(program: ProfiledProgram, position: int) -> int:
    """Return the time of a call that moves each of its tensors through TCM once, on one core."""
    node = program.graph.nodes[position]
    nbytes = sum(numel(view) * item_bytes(view.dtype) for view in (*reads(node), *written(node)))
    return round(gpsimd.rates().launch_ns + gpsimd.rates().transfer_ns(nbytes))
