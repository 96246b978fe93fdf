"""Attention as one fused call, or written out in matrix products and softmax: a graph in the other of the two forms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neurontools.compiler.engines.lowering.families import family
from neurontools.compiler.engines.placement import is_attention
from neurontools.compiler.graph import Graph, Node, Slot, Symbol, View, contiguous_strides, reads
from neurontools.compiler.resizing import ChangeError
from neurontools.compiler.work import item_bytes, numel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Arg

_FUSED = "aten._scaled_dot_product_flash_attention_for_cpu"
# What stands between the product of queries and keys and the softmax, or is dropout after it.
_BETWEEN = frozenset({"div", "mul", "add", "sub", "masked_fill", "where", "_to_copy", "clone"})
_BATCHED = 4  # dimensions: batch, heads, positions, depth


def write_out_attention(graph: Graph) -> Graph:
    """Return a graph whose fused attention is written out, as torch runs it without a fused kernel.

    Raises:
        ChangeError: it has no fused attention.
    """
    if not any(is_attention(node.op) for node in graph.nodes):
        raise ChangeError("the graph has no fused attention", "its attention is written out, or it has none")
    writer = _Writer(graph)
    for node in graph.nodes:
        if is_attention(node.op) and len(reads(node)) >= 3:
            writer.write_out(node)
        else:
            writer.nodes.append(node)
    return writer.graph()


def fuse_attention(graph: Graph, *, is_causal: bool = False) -> Graph:
    """Return a graph whose written-out attention is one call, and its gradient another.

    Args:
        graph: the graph.
        is_causal: whether the calls have a causal mask, so that what it hides is not computed.

    Raises:
        ChangeError: it has no attention that is written out.
    """
    finder = _Finder(graph)
    found = [match for match in map(finder.match, range(len(graph.nodes))) if match is not None]
    if not found:
        raise ChangeError(
            "the graph has no attention that is written out (product, softmax, product)",
            "its attention is fused already, or it has none",
        )
    writer = _Writer(graph, is_causal=is_causal)
    removed = {position for match in found for position in match.removed}
    forward = {match.mix: match for match in found}
    backward = {match.last: match for match in found if match.last is not None}
    for position, node in enumerate(graph.nodes):
        if position in forward:
            writer.fuse(forward[position], graph.nodes)
        elif position in backward:
            writer.fuse_gradient(backward[position], graph.nodes)
        elif position not in removed:
            writer.nodes.append(node)
    return writer.graph()


@dataclass(frozen=True, slots=True)
class _Match:
    """The calls of one attention by their positions; those of its gradient if the graph has them.

    Args:
        scores: the product of queries and keys.
        mix: the product of weights and values.
        operands: queries, keys and values, as they are before a copy for the products.
        removed: what the fused calls replace.
        last: the last call of the gradient.
        weights_gradient: the product that gives the gradient of the weights.
        gradients: the products that give the gradients of queries, keys and values.
        copies: by slots of products, what the fused calls write or read instead: the heads where a copy has them.
    """

    scores: int
    mix: int
    operands: tuple[View, ...]
    removed: frozenset[int]
    last: int | None = None
    weights_gradient: int = -1
    gradients: tuple[int, int, int] | None = None
    copies: tuple[tuple[int, View], ...] = ()


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._makers: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        for position, node in enumerate(graph.nodes):
            for view in node.results:
                if view is not None:
                    self._makers.setdefault(view.slot, position)
            for slot in {view.slot for view in reads(node)}:
                self._readers.setdefault(slot, []).append(position)

    def match(self, position: int) -> _Match | None:
        """Return the attention around a softmax."""
        softmax = self._nodes[position]
        if family(softmax.op) not in {"_softmax", "_safe_softmax"}:
            return None
        before = self._product_before(reads(softmax)[0].slot)
        after = self._product_after(position)
        if before is None or after is None:
            return None
        scores, between = before
        mix, dropout = after
        removed = {scores, *between, position, *dropout, mix}
        query, turned = reads(self._nodes[scores])[-2:]
        operands = query, _turned(turned), reads(self._nodes[mix])[1]
        found = _Match(scores, mix, operands, frozenset(removed))
        return self._without_copies(self._gradient(position, found) or found)

    def _without_copies(self, match: _Match) -> _Match:
        """Let the fused calls read heads where they are, if copies of them have no other readers."""
        removed = set(match.removed)
        operands = []
        for view in match.operands:
            maker = self._makers.get(view.slot)
            node = None if maker is None else self._nodes[maker]
            is_copy = (
                node is not None and family(node.op) == "clone" and len(reads(node)[0].shape) == _BATCHED
            )
            if is_copy and node is not None and removed.issuperset(self._readers[view.slot]):
                removed.add(self._makers[view.slot])
                operands.append(_like_copy(reads(node)[0], node.results[0], view))
            else:
                operands.append(_single(view))
        if len({view.shape[:2] for view in operands}) > 1:  # some are copies and some are not
            return replace(match, operands=tuple(map(_single, match.operands)))
        return self._in_place(replace(match, operands=tuple(operands), removed=frozenset(removed)))

    def _in_place(self, match: _Match) -> _Match:
        """Let the fused calls write heads where copies of their results have them, and read such a gradient."""
        heads = match.operands[0].shape[:2]
        removed, copies = set(match.removed), list[tuple[int, View]]()
        made = [(match.mix, match.mix), *((position, match.last or 0) for position in match.gradients or ())]
        for position, called in made:
            (result, *_) = self._nodes[position].results
            others = (
                [] if result is None else [p for p in self._readers.get(result.slot, ()) if p not in removed]
            )
            if result is None or len(others) != 1 or (written := self._copy_of(others[0], heads)) is None:
                continue
            if all(reader > called for reader in self._readers.get(written.slot, ())):
                removed.add(others[0])
                copies.append((result.slot, written))
        if match.weights_gradient >= 0:
            outer = reads(self._nodes[match.weights_gradient])[0]
            maker = self._makers.get(outer.slot, -1)
            if maker >= 0 and removed.issuperset(self._readers[outer.slot]):
                node = self._nodes[maker]
                if family(node.op) == "clone" and reads(node)[0].shape[:2] == heads:
                    removed.add(maker)
                    copies.append((outer.slot, reads(node)[0]))
        return replace(match, removed=frozenset(removed), copies=tuple(copies))

    def _copy_of(self, position: int, heads: tuple[int, ...]) -> View | None:
        """Return what a copy of a stack of matrices to another order of dimensions makes, as batch x heads x ..."""
        node = self._nodes[position]
        (made, *_) = node.results
        if family(node.op) != "clone" or made is None or len(made.shape) != _BATCHED:
            return None
        source = reads(node)[0]
        order = sorted(range(_BATCHED), key=lambda axis: -source.strides[axis])
        shape, strides = (tuple(values[axis] for axis in order) for values in (made.shape, made.strides))
        return View(made.slot, made.dtype, shape, strides, made.offset) if shape[:2] == heads else None

    def _product_before(self, slot: int) -> tuple[int, list[int]] | None:
        """Return the product behind elementwise calls, and those calls."""
        passed: list[int] = []
        while (maker := self._makers.get(slot)) is not None:
            node = self._nodes[maker]
            if family(node.op) in {"bmm", "baddbmm"}:
                return maker, passed
            if family(node.op) not in _BETWEEN or not reads(node):
                return None
            passed.append(maker)
            slot = reads(node)[0].slot
        return None

    def _product_after(self, softmax: int) -> tuple[int, list[int]] | None:
        """Return the first product of the weights with something, and the calls of a dropout in between."""
        (weights, *_) = self._nodes[softmax].results
        passed: list[int] = []
        while weights is not None:
            following = [self._nodes[reader] for reader in self._readers.get(weights.slot, ())]
            for position, node in zip(self._readers.get(weights.slot, ()), following, strict=True):
                if family(node.op) == "bmm" and reads(node)[0].slot == weights.slot:
                    return position, passed
            forward = [
                p for p in self._readers.get(weights.slot, ()) if family(self._nodes[p].op) in _BETWEEN
            ]
            if not forward or len(passed) > 1:
                return None
            passed.append(forward[0])
            (weights, *_) = self._nodes[forward[0]].results
        return None

    def _gradient(self, softmax: int, match: _Match) -> _Match | None:
        nodes = self._nodes
        (weights, *_) = nodes[softmax].results
        if weights is None:
            return None
        inner = next(
            (p for p in self._readers[weights.slot] if family(nodes[p].op) == "_softmax_backward_data"), None
        )
        if inner is None:
            return None
        outer = self._product_before(reads(nodes[inner])[0].slot)
        mixed = reads(nodes[match.mix])[0].slot
        values = [p for p in self._readers[mixed] if p > match.mix and family(nodes[p].op) == "bmm"]
        products, passed = self._products_after(inner)
        if outer is None or len(products) < 2 or not values:
            return None
        removed = {outer[0], *outer[1], inner, *passed, *products, values[0]}
        queries, keys = sorted(
            products, key=lambda p: reads(nodes[p])[1].slot != reads(nodes[match.scores])[1].slot
        )[:2]
        return replace(
            match,
            removed=match.removed | removed,
            last=max(removed),
            weights_gradient=outer[0],
            gradients=(queries, keys, values[0]),
        )

    def _products_after(self, position: int) -> tuple[list[int], list[int]]:
        (result, *_) = self._nodes[position].results
        passed: list[int] = []
        while result is not None:
            readers = self._readers.get(result.slot, [])
            products = [p for p in readers if family(self._nodes[p].op) == "bmm"]
            if products or not readers or len(passed) > 3:
                return products, passed
            passed.append(readers[0])
            (result, *_) = self._nodes[readers[0]].results
        return [], passed


class _Writer:
    """A graph with calls of another form."""

    def __init__(self, graph: Graph, *, is_causal: bool = False) -> None:
        self.nodes: list[Node] = []
        self._mask: tuple[Arg, ...] = (0.0, True) if is_causal else ()  # dropout_p, is_causal
        self._graph = graph
        self._slots = list(graph.slots)
        self._weights: dict[int, View] = {}
        self._fused: dict[int, tuple[tuple[View, ...], tuple[View, ...]]] = {}
        self._source = self._layer = ""

    def graph(self) -> Graph:
        """Return it."""
        return self._graph.with_calls(self._slots, self.nodes)

    def write_out(self, node: Node) -> None:
        """Add a fused call, forward or backward, written out."""
        self._source, self._layer = node.source, node.layer
        if "backward" in node.op:
            self._write_gradient(node)
            return
        query, key, value = (self._stack(view) for view in reads(node)[:3])
        raw = self._compute("bmm.default", query, _turned(key), shape=(*query.shape[:2], key.shape[1]))
        scores = self._like("mul.Scalar", raw, 1 / math.sqrt(query.shape[2]))
        is_causal = any(arg is True for arg in node.args)
        if is_causal or len(reads(node)) > 3:
            mask = dict(node.kwargs).get("attn_mask", scores)
            scores = self._like("add.Tensor", scores, mask if isinstance(mask, View) else scores)
        weights = self._like("_softmax.default", scores, -1, False)
        result = node.results[0]
        if result is None:
            return
        self._weights[result.slot] = weights
        mixed = self._compute("bmm.default", weights, value, shape=(*query.shape[:2], value.shape[2]))
        self._copy(mixed, result)

    def _write_gradient(self, node: Node) -> None:
        gradient, *operands = reads(node)
        weights = next((self._weights[view.slot] for view in operands if view.slot in self._weights), None)
        if weights is None:
            raise ChangeError(
                f"{node.op} has no forward call in this graph", "compile forward and backward as one graph"
            )
        outer, query, key, value = (self._stack(view) for view in (gradient, *operands[:3]))
        values = self._compute("bmm.default", _turned(weights), outer, shape=value.shape)
        inner = self._compute("bmm.default", outer, _turned(value), shape=weights.shape)
        scores = self._like(
            "_softmax_backward_data.default", inner, weights, -1, Symbol("dtype", weights.dtype)
        )
        scaled = self._like("mul.Scalar", scores, 1 / math.sqrt(query.shape[2]))
        queries = self._compute("bmm.default", scaled, key, shape=query.shape)
        keys = self._compute("bmm.default", _turned(scaled), query, shape=key.shape)
        for made, result in zip((queries, keys, values), node.results, strict=False):
            if result is not None:
                self._copy(made, result)

    def fuse(self, match: _Match, nodes: Sequence[Node]) -> None:
        """Add the fused call of a match."""
        mix = nodes[match.mix]
        self._source, self._layer = mix.source, mix.layer
        (result, *_) = mix.results
        if result is None:
            return
        sums = self._tensor(*match.operands[0].shape[:3], dtype="float32")
        results = (dict(match.copies).get(result.slot) or _single(result), sums)
        self._fused[match.mix] = match.operands, results
        self._call(f"{_FUSED}.default", *match.operands, *self._mask, results=results)

    def fuse_gradient(self, match: _Match, nodes: Sequence[Node]) -> None:
        """Add the fused gradient of a match."""
        if match.gradients is None:
            return
        outer = nodes[match.weights_gradient]
        self._source, self._layer = outer.source, outer.layer
        results = [nodes[position].results[0] for position in match.gradients]
        copies = dict(match.copies)
        received = reads(outer)[0]
        operands, made = self._fused[match.mix]
        shown = tuple(
            None if view is None else _shaped(copies.get(view.slot) or _single(view), operand)
            for view, operand in zip(results, operands, strict=True)
        )
        given = (copies.get(received.slot) or _single(received), *operands, *made, *self._mask)
        self._call(f"{_FUSED}_backward.default", *given, results=shown)

    def _stack(self, view: View) -> View:
        """Return batch x heads x length x depth as a stack of matrices, copied if it does not lie like that."""
        batch, heads, length, depth = view.shape
        shape = (batch * heads, length, depth)
        strides = (length * depth, depth, 1)
        if view.strides[1:] == strides and (batch == 1 or view.strides[0] == heads * length * depth):
            return View(view.slot, view.dtype, shape, strides, view.offset)
        made = self._compute("clone.default", view, shape=view.shape, dtype=view.dtype)
        return View(made.slot, made.dtype, shape, strides, 0)

    def _copy(self, made: View, result: View) -> None:
        shape, strides = result.shape, contiguous_strides(result.shape)
        self._call("aten.clone.default", View(made.slot, made.dtype, shape, strides, 0), results=(result,))

    def _like(self, op: str, first: View, *others: Arg) -> View:
        return self._compute(op, first, *others, shape=first.shape, dtype=first.dtype)

    def _compute(self, op: str, *args: Arg, shape: tuple[int, ...], dtype: str = "") -> View:
        first = next(arg for arg in args if isinstance(arg, View))
        made = self._tensor(*shape, dtype=dtype or first.dtype)
        self._call(f"aten.{op}", *args, results=(made,))
        return made

    def _tensor(self, *shape: int, dtype: str) -> View:
        made = View(len(self._slots), dtype, shape, contiguous_strides(shape), 0)
        self._slots.append(Slot(numel(made) * item_bytes(dtype)))
        return made

    def _call(self, op: str, *args: Arg, results: tuple[View | None, ...]) -> None:
        self.nodes.append(Node(op, args, (), results, self._source, self._layer))


def _single(view: View) -> View:
    """Return a stack of matrices as a batch of one."""
    return View(view.slot, view.dtype, (1, *view.shape), (numel(view), *view.strides), view.offset)


def _like_copy(source: View, copy: View | None, read: View) -> View:
    """Return what a copy is made of as a view of the copy reads it: keys are copied turned, and read turned back."""
    is_turned = copy is not None and copy.strides[-1] != read.strides[-1]
    return _turned(source) if is_turned else source


def _shaped(gradient: View, operand: View) -> View:
    """Return the gradient of an operand in its order of dimensions; that of keys may be made turned."""
    return gradient if gradient.shape[-2:] == operand.shape[-2:] else _turned(gradient)


def _turned(view: View) -> View:
    *outer, rows, columns = view.shape
    *steps, down, along = view.strides
    return View(view.slot, view.dtype, (*outer, columns, rows), (*steps, along, down), view.offset)
