"""The last seconds of a running process: its steps, what bounds them, engines, operators; it profiles itself meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.base.units import format_ns, format_percent
from neurontools.machine.processes import ProcessKey
from neurontools.profiler.analysis.live import state_lines, step_facts
from neurontools.profiler.live import LiveWatch
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.lines import Line, Role, fact_lines, fit, fixed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.snapshot import ProcessState
    from neurontools.profiler.analysis.live import LiveNumbers
    from neurontools.tui.top.model import TopModel

_LABEL_WIDTH = 13
_NAME_WIDTH = 30
_ENGINE_WIDTH = 9
_OPERATORS = 5
_LEAST_CELLS = 8


class LiveLines:
    """The lines of the process that is watched; without being asked for, watching ends after some seconds."""

    def __init__(self) -> None:
        self._watch = LiveWatch()

    def lines(self, model: TopModel, process: ProcessState, width: int) -> Iterator[Line]:
        """Yield the newest numbers of a process."""
        yield fit(((" live profile, last seconds (w ends it)", Role.HEAD),), width)
        snapshot = model.shown.snapshot
        if snapshot is None or snapshot.source != "sim" or process.origin != "live":
            yield fit(
                ((f"   the process is {process.origin}: there is nothing to profile", Role.DIM),), width
            )
            return
        found = self._watch.newest(snapshot.machine, ProcessKey(process.pid, process.start_ticks))
        if found is None:
            yield fit((("   asking the process", Role.DIM),), width)
        elif isinstance(found, str):
            yield from fact_lines("", printable(found), width, 1, Role.ALERT)
        else:
            yield from _numbers(found, width)


def _numbers(numbers: LiveNumbers, width: int) -> Iterator[Line]:
    for text in state_lines(numbers):
        yield fit(((f"   {text}", Role.DIM),), width)
    steps = numbers.steps
    if steps is None:
        return
    for name, text in step_facts(numbers, steps):
        yield from fact_lines(name, text, width, _LABEL_WIDTH)
    name_width = min(_NAME_WIDTH, width // 2)
    cells = max(width - name_width - _ENGINE_WIDTH - 26, _LEAST_CELLS)
    if steps.operators:
        yield from fact_lines("operators", "modelled time of all engines, share", width, _LABEL_WIDTH)
    for each in steps.operators[:_OPERATORS]:
        spans = (
            (f"   {fixed(printable(each.name), name_width)} ", Role.PLAIN),
            (f"{each.engine:<{_ENGINE_WIDTH}}", Role.DIM),
            (f"{format_ns(each.total_ns):>10} ", Role.VALUE),
            *bar(each.share, cells),
            (f" {format_percent(each.share):>6}", Role.PLAIN),
        )
        yield fit(spans, width)
