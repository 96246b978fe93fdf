"""From a trace to what rules look at: the NEFFs of the profile, steps, measured times."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from neurontools.machine.instances.catalogue import find_instance_type
from neurontools.profiler.advice.host_work import host_work
from neurontools.profiler.advice.subject import ProfiledProgram, ProfiledRun
from neurontools.profiler.analysis.programs import executions_per_step, read_neff
from neurontools.profiler.analysis.ranks import compare_ranks
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.capture.format import ProfileError

if TYPE_CHECKING:
    from neurontools.profiler.trace.trace import Trace

_RARE = 0.1
"""Programs that run less often, per step, do not belong to the step."""


def open_subject(trace: Trace) -> ProfiledRun:
    """Return what rules look at.

    Args:
        trace: the profile, or a part of it.

    Raises:
        ProfileError: the profile has no execution, or no readable copy of a NEFF.
    """
    if trace.measured_by:
        raise ProfileError(
            f"advice needs the graphs that ran, and a trace of {trace.measured_by} has none",
            "neuron-profile steps and top show where its time goes",
        )
    processes = find_steps(trace)
    if not processes:
        raise ProfileError(
            "the profile has no executions, so there is no step to advise on",
            "capture a run that uses the device",
        )
    steps = max(processes, key=len)
    names = {model.neff_hash: model.name for model in trace.models}
    counts = Counter(names.values())
    names = {
        neff_hash: name if counts[name] == 1 else f"{name}, NEFF {neff_hash}"
        for neff_hash, name in names.items()
    }
    instance = find_instance_type(trace.processes[0].instance_type)
    device = instance.device if instance else None
    often, rare = list[ProfiledProgram](), list[ProfiledProgram]()
    for neff_hash, per_step in executions_per_step(trace, steps).items():
        if trace.programs.get(neff_hash) is not None:
            program = ProfiledProgram(read_neff(trace, neff_hash), names[neff_hash], per_step, device)
            (often if per_step >= _RARE else rare).append(program)
    if not often:
        raise ProfileError(
            "the profile has no readable copy of a NEFF: advice needs the graphs that ran",
            "capture the run again; the file neff_<hash>.neff is made beside the events",
        )
    often.sort(key=lambda program: -program.total_ns * program.per_step)
    return ProfiledRun(
        tuple(often),
        tuple(rare),
        steps.summary(),
        compare_ranks(trace) if len(processes) > 1 else None,
        host_work(trace),
    )
