"""The programs of a profile: their NEFFs, and their schedules with who waits for whom."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.files import open_input
from neurontools.compiler.engines.estimate import plan
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.placement import CUSTOM_OPCODE
from neurontools.compiler.neff import parse
from neurontools.compiler.options import device_of, read_flags
from neurontools.profiler.capture.format import ProfileError

if TYPE_CHECKING:
    from neurontools.compiler.engines.schedule import Schedule
    from neurontools.compiler.neff import Neff
    from neurontools.machine.instances.catalogue import DeviceType
    from neurontools.profiler.analysis.steps import ProcessSteps
    from neurontools.profiler.trace.trace import Trace


def busiest_program(trace: Trace) -> str:
    """Return the hash of the NEFF whose executions take most device time, empty without any."""
    spent: dict[str, int] = {}
    for runs in trace.runs:
        for model in np.unique(runs.model).tolist():
            name = trace.models[model].neff_hash
            spent[name] = spent.get(name, 0) + int(runs.device_ns[runs.model == model].sum())
    readable = {name: ns for name, ns in spent.items() if trace.programs.get(name) is not None}
    return max(readable, key=lambda name: readable[name], default="")


def executions_per_step(trace: Trace, steps: ProcessSteps) -> dict[str, float]:
    """Return by hash of its NEFF how often a core executes each program in a typical step."""
    counts: Counter[str] = Counter()
    for run in trace.runs:
        if run.process != steps.process:
            continue
        place = np.searchsorted(steps.start_ns, run.wall_start, side="right") - 1
        end_ns = int(steps.start_ns[-1] + steps.duration_ns[-1])
        inside = (place >= 0) & (run.wall_start < end_ns) & steps.steady[np.maximum(place, 0)]
        here: Counter[str] = Counter()
        for number in np.unique(run.model).tolist():
            here[trace.models[number].neff_hash] += int((run.model[inside] == number).sum())
        counts |= here  # the most of all cores of the process
    executed = {
        trace.models[number].neff_hash for run in trace.runs for number in np.unique(run.model).tolist()
    }
    return {neff_hash: counts[neff_hash] / int(steps.steady.sum()) for neff_hash in sorted(executed)}


def neff_path(trace: Trace, neff_hash: str) -> str:
    """Return the path of a profile's copy of a NEFF.

    Raises:
        ProfileError: the copy is gone.
    """
    paths = (os.path.join(directory, f"neff_{neff_hash}.neff") for directory in trace.directories)
    found = next(filter(os.path.isfile, paths), None)
    if found is None:
        raise ProfileError(f"neff_{neff_hash}.neff is gone from the profile", "capture the run again")
    return found


def read_neff(trace: Trace, neff_hash: str) -> Neff:
    """Return a program of a profile from its copy of the NEFF.

    Raises:
        ProfileError: the copy is gone, or cannot be read.
        NeffError: it is damaged.
    """
    path = neff_path(trace, neff_hash)
    try:
        with open_input(path) as file:
            return parse(file.read())
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "check its permissions") from error


def core_of(neff: Neff, device: DeviceType | None = None) -> ModelledCore:
    """Return the core that a NEFF runs on; without a device that for which it was compiled."""
    device = device or device_of(neff.flags)
    return ModelledCore(device, neff.header.lnc, read_flags(neff.flags, device).matmul_dtype)


def schedule_of(neff: Neff, core: ModelledCore) -> Schedule:
    """Return the schedule of a program, made anew from its graph."""
    # The work of custom operators was counted when the NEFF was made.
    custom = {op.operator: op.duration_ns for op in neff.cost.ops if op.opcode == CUSTOM_OPCODE}
    return plan(neff.graph, core, custom)
