"""The recordings of an engine, in a form common to all engines: the source of graphs, programs and traced models."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from neurontools.compiler.graph import Node, View

    Function = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


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
