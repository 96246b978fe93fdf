"""The values of a canonical graph: buffers, tensors as views of buffers, and operator calls.

They are msgspec structs because a graph has tens of thousands of them: they are made and compared several times as fast
as dataclasses.
"""

from __future__ import annotations

from functools import cache

import msgspec

from neurontools.errors import NeuronToolsError

BACKWARD = " (backward)"


class GraphError(NeuronToolsError):
    """Stored bytes are not a graph of this schema."""


class Slot(msgspec.Struct, frozen=True, gc=False):
    """A device buffer of `nbytes`."""

    nbytes: int


class View(msgspec.Struct, frozen=True, gc=False):
    """A tensor: a strided window on a slot. `strides` and `offset` count elements of `dtype` ("float32", ...)."""

    slot: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Lifted(msgspec.Struct, frozen=True, gc=False):
    """A Python number that became an input of the graph, so that its value does not force a new compile."""

    index: int


class Symbol(msgspec.Struct, frozen=True, gc=False):
    """A named constant of torch; `kind` is dtype, layout, memory_format or device."""

    kind: str
    name: str


Arg = View | Lifted | Symbol | None | bool | int | float | str | tuple["Arg", ...]


class Node(msgspec.Struct, frozen=True, gc=False):
    """One operator call.

    `results` are the views it returns; None where it returns no tensor. `source` is the user's `file:line`, `layer` the
    path of the module that calls it, such as `GPT.blocks.3.attn`; both are "" if unknown. An operator of a backward pass
    has those of its forward operator, its layer with BACKWARD at the end.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    results: tuple[View | None, ...]
    source: str = ""
    layer: str = ""


@cache
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, as torch has them: a dimension of size 0 counts as 1."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def views(arg: Arg) -> tuple[View, ...]:
    """Return the views in an argument, lists included, in order."""
    found: list[View] = []
    _collect(arg, found)
    return tuple(found)


def reads(node: Node) -> tuple[View, ...]:
    """Return every view among a node's arguments."""
    found: list[View] = []
    for arg in node.args:
        if isinstance(arg, View):
            found.append(arg)
        elif isinstance(arg, tuple):
            _collect(arg, found)
    for _, value in node.kwargs:
        _collect(value, found)
    return tuple(found)


def _collect(arg: Arg, found: list[View]) -> None:
    if isinstance(arg, View):
        found.append(arg)
    elif isinstance(arg, tuple):
        for item in arg:
            _collect(item, found)
