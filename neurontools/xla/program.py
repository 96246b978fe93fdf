"""What a cut runs: a graph that is loaded on a core, with its executable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from neurontools.xla.engine import LoadedGraph

Executable = Callable[[Sequence[Any], Sequence[float]], tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Program:
    """What a cut runs.

    Args:
        loaded: the graph on its core.
        function: its executable.
        inputs: slots whose host tensors it takes.
        fresh: slots whose host tensors it returns.
        fresh_bytes: device memory that those take.
        random: whether it draws random numbers.
        native: inputs that custom operators read.
    """

    loaded: LoadedGraph
    function: Executable
    inputs: tuple[int, ...]
    fresh: tuple[int, ...]
    fresh_bytes: int
    random: bool
    native: tuple[int, ...] = ()
