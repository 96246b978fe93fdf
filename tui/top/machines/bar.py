"""The line below the title that names several machines, the one that is shown between `>` and `<`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.tui.widgets.lines import Line, Role, Span, clean, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.tui.top.machines.page import Machine

_HEAD = " Machines  "
_NAME_WIDTH = 18


def strip_line(machines: Sequence[Machine], current: int | None, width: int) -> Line:
    """Return the line; `!` stands behind a machine with alerts, `?` behind one without data.

    Args:
        machines: all of them.
        current: the position of the one that is shown, None for the list of all.
        width: cells in the line.
    """
    spans: list[Span] = [(_HEAD, Role.BAR_DIM)]
    for position, text in _visible(machines, current, width):
        if position == current:
            spans += [(">", Role.BAR), (text, Role.BAR_CURRENT), ("<", Role.BAR)]
        else:
            spans.append((f" {text} ", Role.BAR))
    return fit(spans, width, Role.BAR)


def choice_at(
    machines: Sequence[Machine], current: int | None, width: int, x: int
) -> tuple[int | None] | None:
    """Return the position of the machine that is named at a column, in a tuple: `(None,)` is the list; None for nothing."""
    left = len(_HEAD)
    for position, text in _visible(machines, current, width):
        right = left + width_of(text) + 2
        if left <= x < right:
            return (position,)
        left = right
    return None


def _visible(machines: Sequence[Machine], current: int | None, width: int) -> list[tuple[int | None, str]]:
    """Return position and text of what fits, the current one among it; the list of all comes first."""
    names: list[tuple[int | None, str]] = [(None, "all")]
    names += [(position, _name(machine)) for position, machine in enumerate(machines)]
    room = width - len(_HEAD)
    at = 0 if current is None else current + 1
    first = 0
    while first < at and sum(width_of(text) + 2 for _, text in names[first : at + 1]) > room:
        first += 1
    shown: list[tuple[int | None, str]] = []
    for position, text in names[first:]:
        room -= width_of(text) + 2
        if room < 0 and shown:
            break
        shown.append((position, text))
    return shown


def _name(machine: Machine) -> str:
    model = machine.model
    mark = "?" if model.trouble or model.snapshot is None else "!" if model.lookout.alerts else ""
    return fixed(clean(machine.name), _NAME_WIDTH).rstrip() + mark
