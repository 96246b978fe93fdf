"""Data that moves without need: many small copies, and copies that only change the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.units import format_binary_size
from neurontools.compiler.engines.lowering.families import family
from neurontools.compiler.graph import reads
from neurontools.compiler.work import item_bytes, numel, written
from neurontools.profiler.advice.changed_graphs import drop_copies, merge_copies
from neurontools.profiler.advice.findings import Advice, Silent
from neurontools.profiler.advice.subject import short_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.compiler.graph import Graph, View
    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledProgram

COPIES, LAYOUT = "small-copies", "layout"
_COPIES = frozenset({"clone", "copy"})
_SMALL_BYTES = 64 * 1024
_MANY = 8
_ATTENTION = frozenset({"bmm", "baddbmm"})


def small_copies(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield copies of small tensors at one line of the program, if one copy of all is faster."""
    groups: dict[tuple[str, str], list[int]] = {}
    for position, node in enumerate(program.graph.nodes):
        views = written(node) if family(node.op) in _COPIES else ()
        if views and _nbytes(views[0]) <= _SMALL_BYTES:
            groups.setdefault((node.source, node.op), []).append(position)
    many = [group for group in groups.values() if len(group) >= _MANY]
    if not many:
        yield Silent(COPIES, f"no line makes {_MANY} copies of {format_binary_size(_SMALL_BYTES)} or less")
    yield from (_copies_of_a_line(program, group) for group in many)


def _copies_of_a_line(program: ProfiledProgram, group: Sequence[int]) -> Finding:
    node = program.graph.nodes[group[0]]
    place = f"at {short_source(node.source)}" if node.source else "by the program"
    trial = program.trial(lambda: merge_copies(program.graph, group))
    if trial.gain is None or not trial.is_worth:
        return Silent(COPIES, f"{len(group)} small copies {place}, but one of all: {trial.words}")
    views = [written(program.graph.nodes[position])[0] for position in group]
    size, total = format_binary_size(max(map(_nbytes, views))), sum(map(numel, views))
    return Advice(
        COPIES,
        f"Copy once instead of {len(group)} times",
        f"{place}, keep the tensors as parts of one of {total:,} elements, and copy that: a loop of copies becomes one"
        " clone() or copy_()",
        trial.gain,
        f"engine model, this graph with one copy of {format_binary_size(sum(map(_nbytes, views)))}: {trial.words}",
        program.lines(group, f"copy of {size} or less"),
    )


def _nbytes(view: View) -> int:
    return numel(view) * item_bytes(view.dtype)


def layouts(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield copies into another order of dimensions, if the step is faster with data that lies in that order."""
    turned = _turning(program.graph)
    if not turned:
        yield Silent(LAYOUT, "no copy changes the order of dimensions of a whole tensor")
        return
    trial = program.trial(lambda: drop_copies(program.graph, turned), is_bound=True)
    count = f"{len(turned)} {'copy' if len(turned) == 1 else 'copies'} into another order of dimensions"
    if trial.gain is None or not trial.is_worth:
        yield Silent(LAYOUT, f"{count}, but without: {trial.words}")
        return
    lines = program.lines(turned, "copy into another order of dimensions")
    place = f"at {short_source(lines[0].source)}" if lines[0].source else "in the program"
    shape = "x".join(map(str, written(program.graph.nodes[min(turned)])[0].shape))
    is_data = all(slot in program.graph.inputs for slot in turned.values())
    where = (
        "store the data in that order, or permute it before .to(device)"
        if is_data
        else "make it in that order"
    )
    yield Advice(
        LAYOUT,
        "Keep tensors in the order of dimensions in which they are read",
        f"{place}, a permuted tensor is copied to {shape}, by contiguous() for instance; {where}, and leave the copy out",
        trial.gain,
        f"engine model, this graph without {count}: {trial.words}",
        lines,
    )


def _turning(graph: Graph) -> dict[int, int]:
    """Return the copies of whole buffers into another order of dimensions, each with the buffer that it copies."""
    around = [(*reads(node), *written(node)) for node in graph.nodes if family(node.op) in _ATTENTION]
    by_attention = {view.slot for views in around for view in views}
    found = {}
    for position, node in enumerate(graph.nodes):
        if family(node.op) != "clone" or not node.results or node.results[0] is None:
            continue
        source, made = reads(node)[0], node.results[0]
        is_whole = graph.slots[source.slot].nbytes == graph.slots[made.slot].nbytes == _nbytes(made)
        if is_whole and _order(source) != _order(made) and not {source.slot, made.slot} & by_attention:
            found[position] = source.slot
    return found


def _order(view: View) -> tuple[int, ...]:
    """Return the dimensions of a tensor in the order in which they lie, those of size 1 left out."""
    real = [axis for axis, size in enumerate(view.shape) if size > 1]
    return tuple(sorted(real, key=lambda axis: -view.strides[axis]))
