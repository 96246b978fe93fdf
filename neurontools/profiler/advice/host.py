"""What keeps the device waiting between executions: a host that is slower, and steps that are cut into several graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.base.units import format_ns
from neurontools.compiler.engines.costs import engine_costs
from neurontools.profiler.advice.findings import WORTH, Advice, Clock, Evidence, Gain, Silent
from neurontools.profiler.advice.subject import short_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledRun

HOST, CUTS = "host-bound", "graph-cuts"
_STEP_ENDS = ("mark_step", "sync", "optimizer_step", "optimizer step", "step")
_COMPILED = "torch.compile"
_READS = "read values after the step, e.g. add up loss.detach() and call .item() every hundred steps"
_ONE_FUNCTION = (
    "compile the whole step as one function: gradients from torch.func.grad_and_value of the loss, and the update of the"
    " weights after it"
)


def host_bound(subject: ProfiledRun) -> Iterator[Finding]:
    """Yield a host that takes longer between executions than the device for a step."""
    if subject.steps is None:
        yield Silent(HOST, "the profile has no steps")
        return
    if subject.steps.compile_ns or subject.steps.load_ns:
        # Steady steps have neither: where all steps are first executions, the host's time is mostly that.
        yield Silent(HOST, "every step compiles or loads a graph, so there is no typical time of the host")
        return
    step_ns = subject.steps.mean_ns
    host_ns = step_ns - subject.steps.execute_ns
    clocks = f"{format_ns(host_ns)} outside of executions (measured), device: {format_ns(subject.step_ns)} (modelled)"
    if host_ns <= subject.step_ns:
        yield Silent(HOST, f"host: {clocks}, in the average step")
        return
    operators = round(sum(len(program.graph.nodes) * program.per_step for program in subject.programs))
    yield Advice(
        HOST,
        "Let the host do less in a step: the device waits for it",
        f"the program records {operators:,} operators a step; use a larger batch, a fused optimizer (fused=True) and whole"
        " tensors instead of loops over parts, and do logging and data loading in other threads",
        Gain(host_ns, step_ns, Clock.MEASURED, is_bound=True),
        f"host: {clocks}, in the average step; the host's clock is that of this computer",
        (Evidence(f"{operators:,} operators recorded a step", count=operators),),
    )


def graph_cuts(subject: ProfiledRun) -> Iterator[Finding]:
    """Yield lines that end a graph within a step."""
    runs = sum(program.per_step for program in subject.programs)
    inner = [program for program in subject.programs if not _ends_step(program.graph.cut)]
    if runs < 1.5 or not inner:
        yield Silent(
            CUTS, "one graph a step" if runs < 1.5 else f"{runs:.1f} graphs a step, each ended by mark_step"
        )
        return
    launch_ns = round(
        sum(engine_costs(program.device.core.name).launch_ns * program.per_step for program in inner)
    )
    gain = Gain(launch_ns, subject.step_ns)
    parts = dict.fromkeys(program.graph.cut.rpartition(" at ") for program in inner)
    lines = tuple(Evidence(what or "end of a graph", source) for what, _, source in parts)
    places = ", ".join(f"{line.text} at {short_source(line.source)}" for line in lines[:3])
    if gain.share < WORTH:
        yield Silent(
            CUTS, f"{runs:.1f} graphs a step ({places}), but their launches take {format_ns(launch_ns)}"
        )
        return
    yield Advice(
        CUTS,
        f"Keep the step in one graph instead of {runs:.0f}",
        f"{places}: {'; '.join(_remedies(line.text for line in lines))}",
        gain,
        f"engine model, the launch of {plural(round(sum(program.per_step for program in inner)), 'execution')} a step; what"
        " the cuts store, load and wait for comes on top",
        lines[:3],
    )


def _remedies(cuts: Iterable[str]) -> list[str]:
    """Return what to change about cuts: compiled functions end a graph each, other cuts read a value."""
    found = dict.fromkeys(_ONE_FUNCTION if cut.startswith(_COMPILED) else _READS for cut in cuts)
    return list(found)


def _ends_step(cut: str) -> bool:
    return not cut or cut.startswith(_STEP_ENDS)
