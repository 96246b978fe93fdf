"""From a trace to what rules look at: the NEFFs of the profile, steps, measured times."""

from __future__ import annotations

import glob
import os
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from neurontools.compiler.neff import parse
from neurontools.machine.instances.catalogue import find_instance_type
from neurontools.profiler.advice.host_work import host_work
from neurontools.profiler.advice.subject import CoreTimes, ProfiledProgram, ProfiledRun
from neurontools.profiler.capture.format import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.profiler.trace.trace import Trace

_RARE = 0.1
"""Programs that run less often, per step, do not belong to the step."""


def open_subject(trace: Trace, path: str) -> ProfiledRun:
    """Return what rules look at.

    Args:
        trace: the profile, or a part of it.
        path: its directory, which has the copies of the NEFFs.

    Raises:
        ProfileError: the profile has no execution, or no copy of a NEFF.
        NeffError: a copy is damaged.
    """
    counts = _executions(trace)
    names = {model.neff_hash: model.name for model in trace.models}
    if not counts:
        raise ProfileError(
            "the profile has no executions, so there is no step to advise on",
            "capture a run that uses the device",
        )
    files = _neffs(path)
    instance = find_instance_type(trace.processes[0].instance_type)
    device = instance.device if instance else None
    found = {
        neff_hash: ProfiledProgram(parse(_read(files[neff_hash])), names[neff_hash], device=device)
        for neff_hash in counts
        if neff_hash in files
    }
    if not found:
        raise ProfileError(
            f"{path} has no copy of a NEFF: advice needs the graphs that ran",
            "capture the run again; the file neff_<hash>.neff is made beside events.bin",
        )
    ordered = sorted(found, key=lambda neff_hash: -found[neff_hash].total_ns * counts[neff_hash])
    steps = counts[ordered[0]]
    often: list[ProfiledProgram] = []
    rare: list[ProfiledProgram] = []
    for neff_hash in ordered:
        program, count = found[neff_hash], counts[neff_hash]
        program.per_step = count / steps
        (often if count >= max(_RARE * steps, min(2, steps)) else rare).append(program)
    return ProfiledRun(
        tuple(often), tuple(rare), steps, tuple(_core_times(trace, ordered[0])), host_work(trace)
    )


def _executions(trace: Trace) -> Counter[str]:
    """Return how often a core executed each NEFF, by its hash."""
    counts: Counter[str] = Counter()
    for run in trace.runs:
        here: Counter[str] = Counter()
        for number, count in enumerate(np.bincount(run.model, minlength=len(trace.models)).tolist()):
            here[trace.models[number].neff_hash] += count
        counts |= here  # the largest of all cores: workers execute the same program
    return +counts


def _core_times(trace: Trace, main: str) -> Iterator[CoreTimes]:
    """Yield measured times of the cores that execute a program, from the end of its first execution on."""
    is_main = np.array([model.neff_hash == main for model in trace.models], dtype=bool)
    for run in trace.runs:
        mains = np.flatnonzero(is_main[run.model])
        if len(mains) < 2:
            continue
        first, last, steps = int(mains[0]), int(mains[-1]), len(mains) - 1
        executing = int(run.wall_ns[first + 1 : last + 1].sum())
        ends = run.wall_start + run.wall_ns
        whole = int(ends[last] - ends[first])
        label = trace.processes[run.process].label
        yield CoreTimes(label, run.nc, steps, executing // steps, max(0, whole - executing) // steps)


def _neffs(path: str) -> dict[str, str]:
    """Return the paths of the NEFFs of a profile by their hashes."""
    inside = glob.escape(path if os.path.isdir(path) else os.path.dirname(path) or ".")
    found = (name for depth in ("", "*/", "*/*/") for name in glob.glob(f"{inside}/{depth}neff_*.neff"))
    return {os.path.basename(name)[len("neff_") : -len(".neff")]: name for name in found}


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "capture the run again") from error
