"""Choosing a part of a trace: cores, a stretch of time, one NEFF, without warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.meta import ProfileError
from neurontools.profiler.program import pairing_hash

if TYPE_CHECKING:
    from neurontools.profiler.arrays import Mask
    from neurontools.profiler.trace import Trace


@dataclass(frozen=True, slots=True)
class Selection:
    """What to keep.

    Args:
        ncs: process-local NeuronCores; None for all.
        from_ns, to_ns: events that touch this stretch, nanoseconds since the first event; None for no limit.
        skip_warmup: leave out loads and the first execution of every model.
        neff: path of a NEFF; only models loaded from it.
    """

    ncs: frozenset[int] | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    skip_warmup: bool = False
    neff: str | None = None


def select(trace: Trace, wanted: Selection) -> Trace:
    """Return the chosen part.

    Raises:
        ProfileError: nothing is left, or the NEFF cannot be read or was not loaded.
    """
    if trace.event_count == 0:
        return trace
    if wanted.skip_warmup:
        trace = trace.without_warmup()
    keep = _stretch(trace, wanted)
    if wanted.ncs is not None:
        chosen: Mask = np.zeros(trace.event_count, dtype=bool)
        for row in trace.rows:
            chosen[row.span] = row.nc in wanted.ncs
        keep &= chosen
    if wanted.neff is not None:
        keep &= _loaded_from(trace, wanted.neff)[trace.model]
    if not keep.any():
        raise ProfileError("nothing is left of the profile after filtering", "widen --nc, --from, --to or -n")
    return trace if keep.all() else trace.keep(keep)


def _stretch(trace: Trace, wanted: Selection) -> Mask:
    keep: Mask = np.ones(trace.event_count, dtype=bool)
    if wanted.from_ns is not None:
        keep &= trace.start + trace.duration >= wanted.from_ns
    if wanted.to_ns is not None:
        keep &= trace.start <= wanted.to_ns
    return keep


def _loaded_from(trace: Trace, path: str) -> Mask:
    try:
        with open(path, "rb") as file:
            neff_hash = pairing_hash(file.read())
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "give the NEFF of the profile") from error
    found: Mask = np.array([model.value.neff_hash == neff_hash for model in trace.models], dtype=bool)
    if not found.any():
        raise ProfileError(
            f"the profile has no records of {path} (hash {neff_hash})",
            "the profile's own copies are named neff_<hash>.neff",
        )
    return found
