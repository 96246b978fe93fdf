"""The trace cache: a trie whose edges are operator calls and whose nodes are known recordings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neurontools.xla.recorded_trace import RecordedTrace

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    import torch

    from neurontools.compiler.graph import Node
    from neurontools.xla.accelerator import Program
    from neurontools.xla.geometry import Geometry
    from neurontools.xla.operators import Operator


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
