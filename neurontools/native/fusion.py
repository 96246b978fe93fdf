"""Adaptive fusion of eager operators: where a recording is cut that the program does not synchronize, what runs on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools import env
from neurontools.xla import api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Node

_NO_FALLBACK = b"TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"
_LIMIT = 256
_LONGEST_LOOP = 192  # of the last 256 operators, so that at least a quarter of them is seen twice


class AdaptiveFusion:
    """Fuses 256 operators; in a loop as many more as complete a repetition, so that the next graph is the same again."""

    limit = _LIMIT
    counts_recorded = True

    @staticmethod
    def is_complete(operators: Sequence[Node]) -> bool:
        """Return whether the recorded operators are to run before the next one is recorded."""
        calls = [
            (call.op, *(view and (view.dtype, view.shape) for view in call.results))
            for call in operators[-_LIMIT:]
        ]
        period = next((length for length in range(1, _LONGEST_LOOP) if calls[length:] == calls[:-length]), 1)
        return len(operators) % period == 0

    @staticmethod
    def runs_on_host(call: Node) -> bool:
        """Return whether the compiler lacks a data type of a call, and the program does not forbid the CPU for it.

        Source: AWS Neuron documentation, "Best practices for TorchNeuron", "TorchNeuron environment variables".
        """
        if env.is_one(_NO_FALLBACK):
            return False
        return api.engine().accelerator.refusal(call) is not None
