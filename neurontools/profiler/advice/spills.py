"""Values that leave SBUF for lack of room, and engines that wait for each other: what smaller batches change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.base.units import format_binary_size, format_percent
from neurontools.compiler.engines.queues import RELOAD_OPCODE, SPILL_OPCODE
from neurontools.compiler.resizing import batch_sizes
from neurontools.profiler.advice.changed_graphs import work_in_halves
from neurontools.profiler.advice.findings import Advice, Evidence, Silent
from neurontools.profiler.analysis.critical_path import path_of_neff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledProgram

SPILLS, OVERLAP = "spills", "overlap"
_PARTS = (2, 4, 8)
_SMALLEST_PART = 0.02


def spills(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield smaller batches, run one after the other, if values then stay in SBUF and the sum is faster."""
    cost = program.neff.cost
    if not cost.spill_save_bytes:
        yield Silent(SPILLS, "no value left SBUF for lack of room")
        return
    moved = [row for row in cost.rows if row.opcode in {SPILL_OPCODE, RELOAD_OPCODE}]
    saved, reloaded = map(format_binary_size, (cost.spill_save_bytes, cost.spill_reload_bytes))
    share = sum(row.busy_ns for row in moved) / max(1, program.total_ns)
    seen = Evidence(f"{saved} spilled to HBM, {reloaded} reloaded", count=len(moved), share=share)
    known = batch_sizes(program.graph)
    now = known[0] if len(known) == 1 else 1
    trials = {parts: program.trial_of_batch(now, now // parts) for parts in _PARTS if now % parts == 0}
    best = max(trials, key=lambda parts: trials[parts].ns, default=1)
    if best == 1 or (gain := trials[best].gain) is None or not trials[best].is_worth:
        result = f"{best} smaller batches: {trials[best].words}" if trials else "the batch cannot be divided"
        yield Silent(SPILLS, f"{seen.text}, {format_percent(share)} of the step, but {result}")
        return
    yield Advice(
        SPILLS,
        f"Run {best} batches of {now // best} instead of one of {now}, so that values stay in SBUF",
        f"set the batch to {now // best} and run {best} in turn; in training, add up their gradients before"
        " optimizer.step()",
        replace(gain, samples=now),
        f"engine model, {best} executions of this graph with a batch of {now // best}: {trials[best].words}",
        (seen, *program.lines([row.operator for row in moved])),
    )


def overlap(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield two halves of the batch in turn, if engines that wait for each other then work at once."""
    parts = _critical_parts(program)
    chain = ", ".join(f"{engine} {format_percent(part)}" for engine, part in parts)
    if len(parts) < 2:
        yield Silent(OVERLAP, f"one engine is the whole critical path: {chain}")
        return
    known = batch_sizes(program.graph)
    if len(known) != 1 or known[0] % 2:
        yield Silent(OVERLAP, f"the critical path runs through {chain}, but the batch cannot be halved")
        return
    trial = program.trial(lambda: work_in_halves(program.graph, known[0]))
    if trial.gain is None or not trial.is_worth:
        yield Silent(
            OVERLAP, f"the critical path runs through {chain}; two halves of the batch in turn: {trial.words}"
        )
        return
    (first, _), (second, _), *_ = parts
    yield Advice(
        OVERLAP,
        f"Work on two halves of the batch in turn, so that {first} and {second} engines overlap",
        f"split the batch of {known[0]} with a, b = x.chunk(2), and write each line of a layer for both halves"
        " (a = f(a); b = f(b)) before the next one",
        trial.gain,
        f"engine model, this graph with each operator for one half and then for the other: {trial.words}",
        tuple(Evidence(f"the critical path runs through {engine}", share=part) for engine, part in parts),
    )


def _critical_parts(program: ProfiledProgram) -> list[tuple[str, float]]:
    """Return the engines that the critical path runs through, with their parts of it, the largest first."""
    engines = path_of_neff(program.neff, device=program.device).engines
    return [(engine.name, engine.share) for engine in engines if engine.share >= _SMALLEST_PART]
