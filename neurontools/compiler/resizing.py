"""A graph with other sizes: what the program would record with another batch, sequence length or width.

A changed size is a part of a buffer: a *range* of `count` steps of `stride` elements, which becomes `new` steps. A view
finds the ranges of its buffer in its dimensions, also where it merges them with others (batch and positions as rows),
splits them (width as heads) or takes a part of them. A result takes over the ranges of the operands' dimensions that it
is made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.compiler.engines.lowering.families import family
from neurontools.compiler.graph import Graph, Slot, View, reads
from neurontools.compiler.work import written
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from neurontools.compiler.graph import Arg, Node

_PRODUCTS = {
    **dict.fromkeys(("mm", "bmm", "matmul", "_int_mm", "_scaled_mm"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), (1, 2)),
}
_GATHERS = frozenset({"embedding"})


_PASSES = 4


class ChangeError(NeuronToolsError):
    """A change cannot be applied to a graph."""


@dataclass(frozen=True, slots=True)
class _Range:
    """`count` steps of `stride` elements that become `new` steps; of a dimension, elements are those along it."""

    stride: int
    count: int
    new: int


@dataclass(frozen=True, slots=True)
class _Dimension:
    """A dimension with its new size, and the ranges that lie within it."""

    size: int
    new: int
    ranges: tuple[_Range, ...] = ()


def resize(graph: Graph, sizes: Mapping[int, int], *, only_batch: bool = False) -> Graph:
    """Return a graph in which dimensions of inputs, and all that follow from them, have other sizes.

    Args:
        graph: the graph.
        sizes: new sizes by old ones.
        only_batch: change the first dimension of data alone, not weights.

    Raises:
        ChangeError: no input has these sizes, or operands would no longer fit each other.
    """
    if only_batch and 1 in sizes:
        raise ChangeError(
            "a batch of 1 has the size of other dimensions of 1", "capture the program with a batch of 2"
        )
    resizer = _Resizer(graph, sizes, only_batch=only_batch)
    return resizer.run()


def batch_sizes(graph: Graph) -> tuple[int, ...]:
    """Return what may be the batch of a graph: first dimensions of its integer data, or of its other data."""
    return leading_sizes(data_inputs(graph).values())


def leading_sizes(found: Collection[View]) -> tuple[int, ...]:
    """Return the first dimensions of integer data of several dimensions, or of all other data, without 1 where others are."""
    firsts = {view.shape[0] for view in found if _is_integer(view) and len(view.shape) > 1}
    firsts = firsts or {view.shape[0] for view in found}
    return tuple(sorted(firsts - {1})) or tuple(firsts)


class _Resizer:
    def __init__(self, graph: Graph, sizes: Mapping[int, int], *, only_batch: bool) -> None:
        self._graph = graph
        self._sizes = sizes
        self._only_batch = only_batch
        self._ranges: dict[int, tuple[_Range, ...]] = {}
        self._known: set[int] = set(graph.inputs)
        self._made: set[int] = set()
        self._followers: set[int] = set()
        self._demanded: dict[int, tuple[_Range, ...]] = {}

    def run(self) -> Graph:
        given = data_inputs(self._graph) if self._only_batch else _first_views(self._graph)
        for slot in self._graph.inputs:
            if slot in given:
                self._ranges[slot] = self._seed(given[slot])
        if not any(self._ranges.values()):
            wanted = ", ".join(map(str, self._sizes))
            what = "no data of batch" if self._only_batch else "no input with a dimension of"
            raise ChangeError(f"the graph has {what} {wanted}", self._known_sizes())
        nodes = tuple(map(self._node, self._graph.nodes))
        for _ in range(_PASSES):
            if not self._demanded:
                break
            self._ranges |= self._demanded
            self._followers |= self._demanded.keys()
            self._known = {*self._graph.inputs, *self._followers}
            self._demanded = {}
            nodes = tuple(map(self._node, self._graph.nodes))
        slots = [Slot(self._slot_bytes(*pair)) for pair in enumerate(self._graph.slots)]
        return self._graph.with_calls(slots, nodes)

    def _known_sizes(self) -> str:
        if self._only_batch:
            found = batch_sizes(self._graph)
        else:
            found = tuple(
                sorted({size for view in _first_views(self._graph).values() for size in view.shape})
            )
        return f"its sizes are {', '.join(map(str, found[:20]))}" if found else "it has no such inputs"

    def _seed(self, view: View) -> tuple[_Range, ...]:
        found = []
        pairs = list(zip(view.shape, view.strides, strict=True))
        for size, stride in pairs[:1] if self._only_batch else pairs:
            new = self._sizes.get(size)
            if new is not None and size > 1:
                found.append(_Range(stride, size, new))
            elif self._only_batch and _is_integer(view) and len(pairs) == 1:
                found += [
                    _Range(size // old, old, new) for old, new in self._sizes.items() if size % old == 0
                ]
        return tuple(found)

    def _node(self, node: Node) -> Node:
        operands = reads(node)
        before = [self.dimensions(view) for view in operands]
        for view in node.results:
            if view is not None and view.slot not in self._known:
                self._known.add(view.slot)
                self._ranges[view.slot] = self._inherit(node, view, operands, before)
        if family(node.op) in _PRODUCTS:
            self._check_product(node)
        else:
            self._demand(operands, before)
        return replace(
            node,
            args=tuple(map(self._arg, node.args)),
            kwargs=tuple((name, self._arg(arg)) for name, arg in node.kwargs),
            results=tuple(None if view is None else self._view(view) for view in node.results),
        )

    def _arg(self, arg: Arg) -> Arg:
        if isinstance(arg, View):
            return self._view(arg)
        return tuple(map(self._arg, arg)) if isinstance(arg, tuple) else arg

    def _view(self, view: View) -> View:
        ranges = self._ranges.get(view.slot, ())
        dimensions = self.dimensions(view)
        shape = tuple(dimension.new for dimension in dimensions)
        strides = tuple(_scaled_stride(stride, ranges, view, dimensions) for stride in view.strides)
        return replace(
            view, shape=shape, strides=strides, offset=_scaled_stride(view.offset, ranges, view, dimensions)
        )

    def dimensions(self, view: View) -> tuple[_Dimension, ...]:
        """Return the dimensions of a view with their new sizes."""
        ranges = self._ranges.get(view.slot, ())
        found = [_Dimension(size, size) for size in view.shape]
        for span in ranges:
            self._place(span, view, found)
        for position, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
            if stride == 0 and size in self._sizes and (position == 0 or not self._only_batch):
                found[position] = _Dimension(size, self._sizes[size], (_Range(1, size, self._sizes[size]),))
        return tuple(found)

    def _place(self, span: _Range, view: View, found: list[_Dimension]) -> None:
        """Change the dimensions of a view in which a range lies."""
        after = span.stride * span.count
        inside = []
        for position, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
            if stride == 0 or size == 1:
                continue
            if stride <= span.stride and after <= stride * size:
                old = found[position]
                new = _exact(old.new * span.new, span.count, view)
                within = _Range(span.stride // stride, span.count, span.new)
                found[position] = _Dimension(old.size, new, (*old.ranges, within))
                return
            if span.stride <= stride and stride * size <= after:
                inside.append((stride, position))
        if inside:
            _split(span, view, found, [position for _, position in sorted(inside)])

    def _inherit(
        self, node: Node, view: View, operands: Sequence[View], before: Sequence[tuple[_Dimension, ...]]
    ) -> tuple[_Range, ...]:
        """Return the ranges of a new buffer, from the dimensions of the operands that its own come from."""
        others = [operand for operand in operands if operand.slot != view.slot]
        if not others:
            self._made.add(view.slot)
            return () if self._only_batch else self._seed(view)
        sources = _sources(node, view, operands, before)
        found = []
        for size, stride, source in zip(view.shape, view.strides, sources, strict=True):
            origin = source or _Dimension(size, size if self._only_batch else self._sizes.get(size, size))
            if origin.new != origin.size == size:
                inner = origin.ranges or (_Range(1, size, origin.new),)
                found += [_Range(part.stride * stride, part.count, part.new) for part in inner]
        return tuple(found)

    def _demand(self, operands: Sequence[View], before: Sequence[tuple[_Dimension, ...]]) -> None:
        """Let tensors that come from nothing, such as noise, and labels follow other operands in the next pass."""
        for view in operands:
            if self._ranges.get(view.slot):
                continue
            is_label = view.slot in self._graph.inputs and _is_integer(view) and len(view.shape) == 1
            for other, dimensions in zip(operands, before, strict=True):
                is_twin = (other.shape, other.strides) == (view.shape, view.strides)
                if view.slot in self._made and is_twin and self._ranges.get(other.slot):
                    self._demanded[view.slot] = self._ranges[other.slot]
                elif is_label and dimensions and dimensions[0].new != dimensions[0].size == view.shape[0]:
                    self._demanded[view.slot] = dimensions[0].ranges

    def _check_product(self, node: Node) -> None:
        left, right = (node.args[position] for position in _PRODUCTS[family(node.op)])
        if (
            not isinstance(left, View)
            or not isinstance(right, View)
            or min(len(left.shape), len(right.shape)) < 2
        ):
            return
        columns, rows = self.dimensions(left)[-1], self.dimensions(right)[-2]
        if columns.new != rows.new:
            place = f" ({node.source})" if node.source else ""
            raise ChangeError(
                f"{node.op}{place} would multiply {columns.new} columns by {rows.new} rows, both {rows.size} now",
                "change the sizes that belong together as well, e.g. --shape 260=256 --shape 780=768",
            )

    def _slot_bytes(self, number: int, slot: Slot) -> int:
        old = new = 1
        for span in self._ranges.get(number, ()):
            old, new = old * span.count, new * span.new
        return -(-slot.nbytes * new // old)


def _split(span: _Range, view: View, found: list[_Dimension], positions: list[int]) -> None:
    """Change one of the dimensions that a range is split into, innermost first, or a slice of it."""
    sizes = [view.shape[position] for position in positions]
    covered = math.prod(sizes)
    if len(positions) == 1 and span.count % covered:
        new = covered + span.new - span.count
        if new > 0:
            found[positions[0]] = _Dimension(covered, new, (_Range(1, covered, new),))
            return
    for position in positions:
        size = view.shape[position]
        if size * span.new % span.count == 0:
            new = size * span.new // span.count
            found[position] = _Dimension(size, new, (_Range(1, size, new),))
            return
    raise ChangeError(
        f"a dimension of {span.count} is used as {' x '.join(map(str, reversed(sizes)))}, which {span.new} cannot be",
        f"choose a multiple of {math.prod(sizes[1:]) or 1}",
    )


def _sources(
    node: Node, view: View, operands: Sequence[View], before: Sequence[tuple[_Dimension, ...]]
) -> list[_Dimension | None]:
    """Return for each dimension of a result the operand's dimension that it comes from."""
    name = family(node.op)
    if name in _PRODUCTS:
        by_view = dict(zip(operands, before, strict=True))
        left, right = (node.args[position] for position in _PRODUCTS[name])
        if isinstance(left, View) and isinstance(right, View) and len(view.shape) == len(left.shape):
            return [*by_view[left][:-1], by_view[right][-1]]
    if name in _GATHERS and len(operands) == 2:
        table, indices = before
        return [*indices, *table[1:]]
    twins = [dims for operand, dims in zip(operands, before, strict=True) if operand.shape == view.shape]
    if twins:
        return [_changed(column) for column in zip(*twins, strict=True)]
    if name == "cat":
        return _joined(view, before)
    return [_aligned(axis, view, before) for axis in range(len(view.shape))]


def _aligned(axis: int, view: View, before: Sequence[tuple[_Dimension, ...]]) -> _Dimension | None:
    size = view.shape[axis]
    from_right = len(view.shape) - axis
    aligned = [dims[-from_right] for dims in before if len(dims) >= from_right]
    aligned += [dims[axis] for dims in before if len(dims) > axis]
    for dimension in aligned:
        if dimension.size == size != dimension.new:
            return dimension
    same = [dimension for dims in before for dimension in dims if dimension.size == size]
    return same[0] if same and all(dimension.new != size for dimension in same) else None


def _joined(view: View, before: Sequence[tuple[_Dimension, ...]]) -> list[_Dimension | None]:
    columns: Iterator[tuple[_Dimension, ...]] = zip(*before, strict=False)
    found: list[_Dimension | None] = []
    for size, column in zip(view.shape, columns, strict=False):
        total, new = sum(item.size for item in column), sum(item.new for item in column)
        is_joined = total == size and any(item.size != size for item in column)
        found.append(_Dimension(size, new) if is_joined else _changed(column))
    return found + [None] * (len(view.shape) - len(found))


def _changed(column: Sequence[_Dimension]) -> _Dimension:
    return next((item for item in column if item.new != item.size), column[0])


def _exact(product: int, divisor: int, view: View) -> int:
    if product % divisor:
        raise ChangeError(
            f"a tensor of {'x'.join(map(str, view.shape))} cannot have that size", "choose another size"
        )
    return product // divisor


def _scaled_stride(
    stride: int, ranges: Sequence[_Range], view: View, dimensions: Sequence[_Dimension]
) -> int:
    """Return a stride or an offset after the ranges below it have changed."""
    scaled = stride
    for span in ranges:
        if span.stride * span.count <= stride:
            scaled = scaled * span.new // span.count
        elif span.stride < stride:
            for dimension, inner in zip(dimensions, view.strides, strict=True):
                if (
                    span.stride <= inner
                    and 0 < inner * dimension.size <= stride
                    and dimension.new != dimension.size
                ):
                    scaled = scaled * dimension.new // dimension.size
    return scaled


def _first_views(graph: Graph) -> dict[int, View]:
    """Return the first view of each slot that a call reads."""
    found: dict[int, View] = {}
    for node in graph.nodes:
        for view in reads(node):
            found.setdefault(view.slot, view)
    return found


def data_inputs(graph: Graph) -> dict[int, View]:
    """Return the first views of the inputs without weights: tensors written, right operands, kernels, tables, vectors.

    The first product decides: that of the gradient of a weight has the data on its right, too.
    """
    weights = set(graph.outputs)
    is_weight: dict[int, bool] = {}
    for node in graph.nodes:
        name = family(node.op)
        tensors = [arg for arg in node.args if isinstance(arg, View)]
        weights.update(view.slot for view in written(node))
        if name in _PRODUCTS:
            for position, is_right in zip(_PRODUCTS[name], (False, True), strict=True):
                for operand in node.args[position : position + 1]:
                    if isinstance(operand, View):
                        is_weight.setdefault(operand.slot, is_right)
        elif name in _GATHERS:
            weights.add(tensors[0].slot)
        elif "convolution" in name or "norm" in name or name == "linear":
            weights.update(view.slot for view in tensors[2 if "backward" in node.op else 1 :])
    weights.update(slot for slot, decided in is_weight.items() if decided)
    inputs = set(graph.inputs) - weights
    return {
        slot: view
        for slot, view in _first_views(graph).items()
        if slot in inputs and view.shape and (len(view.shape) > 1 or _is_integer(view))
    }


def _is_integer(view: View) -> bool:
    return view.dtype.startswith(("int", "uint"))
