"""Adaptive fusion of eager operators: where a recording is cut that the program does not synchronize."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Node

_LIMIT = 256
_LONGEST_LOOP = 192  # of the last 256 operators, so that at least a quarter of them is seen twice


class AdaptiveFusion:
    """Fuses 256 operators; in a loop as many more as complete a repetition, so that the next graph is the same again."""

    limit = _LIMIT

    @staticmethod
    def is_complete(operators: Sequence[Node]) -> bool:
        """Return whether the recorded operators are to run before the next one is recorded."""
        calls = [
            (call.op, *(view and (view.dtype, view.shape) for view in call.results))
            for call in operators[-_LIMIT:]
        ]
        period = next((length for length in range(1, _LONGEST_LOOP) if calls[length:] == calls[:-length]), 1)
        return len(operators) % period == 0
