"""Where a recording ends that the program does not synchronize."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from neurontools.xla.debugging import metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Node

_LIMIT = 20_000  # operators; a compile takes about 0.5 ms an operator
_log = logging.getLogger("neurontools.xla")


class Fusion(Protocol):
    """Decides where a recording ends that the program does not synchronize.

    Args:
        limit: number of operators from which on `is_complete` is asked.
        counts_recorded: whether tensors take device memory as soon as the program has them, as without fusion.
    """

    limit: int
    counts_recorded: bool

    def is_complete(self, operators: Sequence[Node]) -> bool:
        """Return whether the recorded operators are to run before the next one is recorded."""

    def runs_on_host(self, call: Node) -> bool:
        """Return whether a call with a data type that the compiler may lack runs on the CPU instead."""


class OneGraph:
    """Everything up to a synchronization is one graph; a program without any gets a warning."""

    limit = _LIMIT
    counts_recorded = False

    @staticmethod
    def is_complete(operators: Sequence[Node]) -> bool:
        """Return True, after a warning: the recording has become too long."""
        _log.warning("cut a graph of %d operators: the program has no mark_step for too long", len(operators))
        metrics.count("GraphLimitCut")
        return True

    @staticmethod
    def runs_on_host(call: Node) -> bool:  # noqa: ARG004  what the compiler lacks is its error
        """Return False: every call is part of the graph."""
        return False
