"""Factors between published and modelled times of the families of `neurontools estimate`, from calibration rows alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.engine_model.published import CALIBRATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.engine_model.model_times import ModelTime

LEFT_OUT = 0.05
"""The share of rows below a range, and of those above it."""

FEW, NARROWEST = 10, (0.5, 2.0)
"""With fewer rows than this, a range is at least this wide."""

FAMILIES = {
    "prompt": ("decoder-prompt",),
    "token": ("decoder-token",),
    "encoder": ("encoder",),
    "training": ("training-one-node", "training-many-nodes"),
    "graph": (),
}
"""Families of anchors by those of estimates; a graph may be of any."""


def range_of(factors: Sequence[float]) -> tuple[float, float]:
    """Return the ends between which at least 90 % of some factors lie, rounded outwards to two digits."""
    ordered, cut = sorted(factors), int(LEFT_OUT * len(factors))
    low, high = ordered[cut], ordered[-1 - cut]
    if len(ordered) < FEW:
        low, high = min(low, NARROWEST[0]), max(high, NARROWEST[1])
    return math.floor(low * 100) / 100, math.ceil(high * 100) / 100


def ranges_text(times: Iterable[ModelTime], date: str) -> str:
    """Return the ranges of each family that has rows, as the lines of `fixtures/engines/estimate_ranges.yaml`."""
    chosen = [time for time in times if time.anchor.half == CALIBRATION]
    lines = []
    for family, kinds in FAMILIES.items():
        factors = [1 / time.ratio for time in chosen if not kinds or time.anchor.family in kinds]
        if factors:
            low, high = range_of(factors)
            source = f"90 % of {len(factors)} published times, {date}"
            if len(factors) < FEW:
                source += f", at least {NARROWEST[0]} to {NARROWEST[1]}"
            lines.append(f'{family}: {{low: {low}, high: {high}, source: "{source}"}}')
    return "\n".join(lines)
