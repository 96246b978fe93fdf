"""The trace cache: a trie whose edges are operator calls and whose nodes are known recordings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from neurontools.compiler.graph import Node, View

    Function = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    from collections.abc import Hashable, Iterator

    from neurontools.xla.accelerator import Program
    from neurontools.xla.geometry import Geometry
    from neurontools.xla.operators import Operator


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """A recording of operator calls.

    Args:
        calls: the operator calls in order.
        added: layout ids (see `geometry`) of the slots that each call adds, its new inputs first.
        bound: number of those slots that are inputs, per call.
        lifted: number of scalars that are inputs.
    """

    calls: tuple[Node, ...]
    added: tuple[tuple[int, ...], ...]
    bound: tuple[int, ...]
    lifted: int

    def inputs(self) -> tuple[int, ...]:
        """Return the slots that hold data when the recording starts, in binding order."""
        starts = accumulate((len(layouts) for layouts in self.added), initial=0)
        pairs = zip(starts, self.bound, strict=False)
        return tuple(slot for start, count in pairs for slot in range(start, start + count))

    def input_layouts(self) -> tuple[int, ...]:
        """Return the layout id of every input, in the order of `inputs`."""
        pairs = zip(self.added, self.bound, strict=True)
        return tuple(layout_id for layouts, count in pairs for layout_id in layouts[:count])


@dataclass(frozen=True, slots=True)
class RecordedInput:
    """An input of a recorded function.

    Args:
        argument: position among the function's arguments; -1 for a weight.
        value: the contents of a weight, None for an argument.
        origin: the device tensor from which a weight was read, None if the caller has not passed it.
        geometry: the geometry that the graph expects.
    """

    argument: int
    value: torch.Tensor | None
    origin: torch.Tensor | None
    geometry: View


@dataclass(frozen=True, slots=True)
class RecordedFunction:
    """A recorded function with its inputs and results.

    Args:
        trace: the recording.
        inputs: contents of the input slots, in the order of the trace.
        scalars: values of the scalar inputs.
        results: the slots and geometry of its results.
    """

    trace: RecordedTrace
    inputs: tuple[RecordedInput, ...]
    scalars: tuple[float, ...]
    results: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Fresh:
    """A result in a new buffer of `nbytes`, whose number in the recording is `slot`."""

    slot: int
    geometry: Geometry
    nbytes: int
    layout_id: int
    contiguous: bool


@dataclass(frozen=True, slots=True)
class Alias:
    """A result that is a view of a tensor argument (`tensor` counts them in order) or of an earlier result."""

    tensor: int
    of_result: bool
    geometry: Geometry


Recipe = Fresh | Alias | None


@dataclass(slots=True, eq=False)
class TrieNode:
    """One recorded call and what follows it.

    Args:
        parent: the call before it, None at the root.
        operator: what was called, None at the root.
        call: the call in the graph's terms, None at the root.
        recipes: how to make the results without running anything.
        fast_result: shape, dtype, bytes and layout id of a single, new and contiguous result.
        added: layout ids of the slots that the call adds, inputs first.
        bound: how many of those are inputs.
        lifted: scalars that became inputs, up to and including this call.
        slots: slots in use after this call.
        written: slots that the call makes or changes.
        draws: whether this call or one before it draws random numbers.
        depth: number of calls up to this one.

    `shadow_of` is the node that this one replaces while its known edges must not be followed.
    `edges` leads to the calls seen next. `programs` holds the executables by the slots that were alive at the sync.
    """

    parent: TrieNode | None
    operator: Operator | None
    call: Node | None
    recipes: tuple[Recipe, ...] = ()
    fast_result: tuple[tuple[int, ...], torch.dtype, int, int] | None = None
    added: tuple[int, ...] = ()
    bound: int = 0
    lifted: int = 0
    slots: int = 0
    written: tuple[int, ...] = ()
    draws: bool = False
    depth: int = 0
    edges: dict[Hashable, TrieNode] = field(default_factory=dict)
    programs: dict[tuple[int, ...], Program] = field(default_factory=dict)
    candidates: tuple[int, ...] | None = None
    shadow_of: TrieNode | None = None

    def unfollowed(self) -> TrieNode:
        """Return a stand-in without edges, for a recording that has to run every call."""
        return replace(self, edges={}, shadow_of=self) if self.edges else self

    def path(self) -> tuple[TrieNode, ...]:
        """Return the recorded calls from the first to this one."""
        return tuple(reversed(tuple(self._up())))

    def calls(self) -> tuple[Node, ...]:
        """Return the recorded calls in the graph's terms."""
        return tuple(node.call for node in self.path() if node.call is not None)

    def trace(self) -> RecordedTrace:
        """Return the recording up to this call."""
        path = self.path()
        return RecordedTrace(
            calls=self.calls(),
            added=tuple(node.added for node in path),
            bound=tuple(node.bound for node in path),
            lifted=self.lifted,
        )

    def visible(self) -> tuple[int, ...]:
        """Return the slots that the calls up to this one make or change."""
        if self.candidates is None:
            self.candidates = tuple(sorted({slot for node in self._up() for slot in node.written}))
        return self.candidates

    def _up(self) -> Iterator[TrieNode]:
        node: TrieNode | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent


def new_root() -> TrieNode:
    """Return an empty trie."""
    return TrieNode(parent=None, operator=None, call=None)
