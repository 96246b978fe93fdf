"""Build a canonical graph call by call, as the lazy device records it: views take no call, each result is a new buffer."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.compiler.graph import Graph, Node, Slot, Symbol, View, contiguous_strides
from neurontools.compiler.work import item_bytes, numel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.compiler.graph import Arg


class GraphBuilder:
    """A graph under construction.

    Args:
        dtype: data type of weights and activations.
        training: whether calls record how to propagate gradients.
        has_dropout: whether dropout layers drop.
    """

    def __init__(self, dtype: str = "float32", *, training: bool = False, has_dropout: bool = False) -> None:
        self.dtype = dtype
        self.training = training
        self.has_dropout = has_dropout
        self.parameters: list[View] = []
        self.gradients: dict[int, View] = {}
        self._slots: list[Slot] = []
        self._inputs: list[int] = []
        self._nodes: list[Node] = []
        self._tape: list[Callable[[], None]] = []
        self._constants: set[int] = set()
        self._reused: list[View] = []

    def tensor(self, *shape: int, dtype: str = "") -> View:
        """Return a new buffer."""
        kind = dtype or self.dtype
        self._slots.append(Slot(math.prod(shape) * item_bytes(kind)))
        return View(len(self._slots) - 1, kind, tuple(shape), contiguous_strides(shape), 0)

    def input(self, *shape: int, dtype: str = "") -> View:
        """Return a buffer that holds data when the graph starts and takes no gradient."""
        made = self.tensor(*shape, dtype=dtype)
        self._inputs.append(made.slot)
        self._constants.add(made.slot)
        return made

    def parameter(self, *shape: int) -> View:
        """Return a weight."""
        if self._reused:
            return self._reused.pop(0)
        made = self.tensor(*shape)
        self._inputs.append(made.slot)
        self.parameters.append(made)
        return made

    @contextmanager
    def reusing(self, weights: Sequence[View]) -> Iterator[None]:
        """Make layers built meanwhile take these weights in order, instead of new ones."""
        self._reused = list(weights)
        yield
        self._reused = []

    def call(self, op: str, *args: Arg, results: Sequence[View | None], **kwargs: Arg) -> None:
        """Add a call of `aten.<op>`."""
        self._nodes.append(Node(f"aten.{op}", args, tuple(kwargs.items()), tuple(results)))

    def compute(self, op: str, *args: Arg, shape: tuple[int, ...], dtype: str = "", **kwargs: Arg) -> View:
        """Add a call with one result, and return that."""
        made = self.tensor(*shape, dtype=dtype)
        self.call(op, *args, results=(made,), **kwargs)
        return made

    def like(self, op: str, x: View, *others: Arg, **kwargs: Arg) -> View:
        """Add a call whose result has the shape of its first argument."""
        return self.compute(op, x, *others, shape=x.shape, dtype=x.dtype, **kwargs)

    def on_backward(self, step: Callable[[], None]) -> None:
        """Keep how to propagate gradients through the last call."""
        if self.training:
            self._tape.append(step)

    def insert_backward(self, step: Callable[[], None], position: int) -> None:
        """Keep how to propagate gradients through a call before the last `position` ones."""
        self._tape.insert(len(self._tape) - position, step)

    def gradient(self, x: View) -> View:
        """Return the gradient of a whole buffer, in the shape of a view of it.

        Raises:
            KeyError: nothing that came later depends on it.
        """
        found = self.gradients[x.slot]
        return found if found.shape == x.shape else reshape(found, *x.shape)

    def wants_gradient(self, x: View) -> bool:
        """Return whether a buffer takes a gradient."""
        return x.slot not in self._constants

    def contribute(self, x: View, gradient: View) -> None:
        """Add a part to the gradient of a whole buffer."""
        if not self.wants_gradient(x):
            return
        known = self.gradients.get(x.slot)
        part = reshape(gradient, *x.shape)
        if known is not None:
            part = self.like("add.Tensor", reshape(known, *x.shape), part)
        self.gradients[x.slot] = part

    def backward(self, loss: View) -> None:
        """Add the backward pass of everything so far."""
        self.gradients[loss.slot] = self.like("ones_like.default", loss)
        for step in reversed(self._tape):
            step()
        self._tape.clear()

    def finish(self, *outputs: View) -> Graph:
        """Return the graph; weights and their gradients stay visible when it has run."""
        kept = [*outputs, *self.parameters]
        kept += [self.gradients[weight.slot] for weight in self.parameters if weight.slot in self.gradients]
        slots = tuple(dict.fromkeys(view.slot for view in kept))
        return Graph(tuple(self._slots), tuple(self._inputs), 0, tuple(self._nodes), slots)


def reshape(x: View, *shape: int) -> View:
    """Return a tensor in another shape, with the strides of a contiguous one: what views do to whole buffers."""
    if tuple(shape) == x.shape:
        return x
    if math.prod(shape) != numel(x):
        raise ValueError(f"{x.shape} has no form {shape}")
    return replace(x, shape=tuple(shape), strides=contiguous_strides(shape))


def transpose(x: View, first: int = -2, second: int = -1) -> View:
    """Return a tensor with two dimensions swapped."""
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return permute(x, *order)


def permute(x: View, *order: int) -> View:
    """Return a tensor with its dimensions in another order."""
    return replace(x, shape=tuple(x.shape[i] for i in order), strides=tuple(x.strides[i] for i in order))


def expand(x: View, *shape: int) -> View:
    """Return a tensor repeated along dimensions of size 1, by stride 0."""
    missing = len(shape) - len(x.shape)
    sizes, strides = (1,) * missing + x.shape, (0,) * missing + x.strides
    spread = tuple(
        0 if old == 1 and new != 1 else stride for old, new, stride in zip(sizes, shape, strides, strict=True)
    )
    return replace(x, shape=tuple(shape), strides=spread)


def select(x: View, dimension: int, index: int) -> View:
    """Return the part of a tensor at one index of a dimension."""
    shape, strides = list(x.shape), list(x.strides)
    offset = x.offset + index * strides[dimension]
    del shape[dimension], strides[dimension]
    return replace(x, shape=tuple(shape), strides=tuple(strides), offset=offset)


def narrow(x: View, dimension: int, start: int, length: int) -> View:
    """Return a stretch of a tensor along a dimension."""
    shape = list(x.shape)
    shape[dimension] = length
    return replace(x, shape=tuple(shape), offset=x.offset + start * x.strides[dimension])


def dtype_symbol(name: str) -> Symbol:
    """Return a data type as an argument."""
    return Symbol("dtype", name)
