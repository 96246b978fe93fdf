"""The classic causes of a compile by name, and what to do about those that several rules tell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CUT_ADVICE = (
    "cut at the same place in every step: call mark_step once a step, and do not print, .item() or .cpu() in between in "
    "some steps only"
)
"""What to do about cuts that move."""

DROP_LAST_ADVICE = "DataLoader(..., drop_last=True), or pad the last batch to the full size"
"""What to do about a last partial batch."""

SCALAR_ADVICE = "make the number a tensor on the device (torch.tensor(value, device=...)), so that it is an input of the graph"
"""What to do about a number that is a constant of the graph."""


class CauseName(StrEnum):
    """A classic cause."""

    FIRST = "first compile"
    COMPILER = "compiler changed"
    FLAGS = "flags changed"
    FLAG_ORDER = "order of flags"
    FLAG_PATH = "path in a flag"
    SHAPE_SERIES = "shape that changes"
    SHAPE = "another shape"
    LAST_BATCH = "last partial batch"
    CUT_MOVED = "mark_step moved"
    SCALAR = "Python scalar baked in"
    DTYPE = "data type changed"
    TRAINING = "training or evaluation"
    STATE = "first step of the optimizer"
    LIBRARY = "custom operator rebuilt"
    WORLD = "world size or replica groups"
    KEPT = "another tensor is kept"
    CODE = "the computation changed"
    METADATA = "names or lines in the graph"
    OTHER_CACHE = "another cache directory"
    DELETED = "entry was deleted"
    PRUNED = "entry was removed by neuron-cache"
    DAMAGED = "stored NEFF was damaged"
    RETRIED = "failed compile was tried again"
    REPLAYED = "cached failure was replayed"
    UNCACHED = "compiled without the cache"
    UNKNOWN = "not known"


class Confidence(StrEnum):
    """How sure a cause is: the only difference there is, what best explains it, or one explanation among others."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause, what shows it, and what to do about it. `values` are those of what varied, in order."""

    name: CauseName
    confidence: Confidence
    text: str
    advice: str = ""
    values: tuple[str, ...] = ()
