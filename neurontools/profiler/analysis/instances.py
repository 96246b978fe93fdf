"""Single events out of groups: the slowest one of an operator, layer or line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.operators import label_of
from neurontools.profiler.capture.format import DEVICE_TRACKS

if TYPE_CHECKING:
    from neurontools.profiler.analysis.operators import By
    from neurontools.profiler.trace.trace import Trace


def slowest_event(trace: Trace, by: By, name: str) -> int | None:
    """Return the number of the longest event of a group; of several the one in the middle of the run.

    Args:
        trace: the events.
        by: how events are grouped: by anything but rank.
        name: of the group.
    """
    wanted = np.array([label_of(action, by) == name for action in trace.actions], dtype=bool)
    best: tuple[int, int] | None = None
    for row in trace.rows_of(*DEVICE_TRACKS):
        longest, action = -1, 0
        for part in row.events.parts():
            chosen = np.flatnonzero(wanted[part.events.action])
            if len(chosen):
                at = int(chosen[np.argmax(part.events.duration[chosen])])
                if int(part.events.duration[at]) > longest:
                    longest, action = int(part.events.duration[at]), int(part.events.action[at])
        if longest >= 0 and (best is None or longest > best[0]):
            only = np.arange(len(trace.actions)) == action
            numbers = row.events.of_actions(only)
            numbers = numbers[row.events.at(numbers).duration == longest]
            best = longest, row.first + int(numbers[len(numbers) // 2])
    return None if best is None else best[1]
