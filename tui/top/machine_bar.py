"""The machine bar: a line with the names of several machines, and the actions and keys to switch between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding

from neurontools.base.text import printable
from neurontools.tui.top.layout import MIN_HEIGHT
from neurontools.tui.top.page_actions import PageActions
from neurontools.tui.top.pages.rows import place_tabs, tab_at, tabs_line
from neurontools.tui.widgets.lines import fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.tui.top.pages.machines import MachinesPage, MonitoredMachine
    from neurontools.tui.top.pages.rows import PlacedTab
    from neurontools.tui.top.playback import PlaybackController
    from neurontools.tui.widgets.lines import Line

_HEAD = " Machines  "
_NAME_WIDTH = 18


def format_machine_bar(machines: Sequence[MonitoredMachine], current: int | None, width: int) -> Line:
    """Return the machine bar; `!` marks a machine with alerts, `?` one without data.

    Args:
        machines: all of them.
        current: index of the current machine, None for the list of all.
        width: cells in the line.
    """
    return tabs_line(_HEAD, _tabs(machines, current, width), _position(current), width)


def choice_at(
    machines: Sequence[MonitoredMachine], current: int | None, width: int, x: int
) -> tuple[int | None] | None:
    """Return the index of the machine at a column, in a tuple: `(None,)` is the list; None if there is none."""
    position = tab_at(_tabs(machines, current, width), x)
    return None if position is None else (position - 1 if position else None,)


def _tabs(machines: Sequence[MonitoredMachine], current: int | None, width: int) -> tuple[PlacedTab, ...]:
    # The list of all comes first.
    return place_tabs(["all", *map(_name, machines)], _position(current), len(_HEAD), width)


def _position(machine: int | None) -> int:
    return 0 if machine is None else machine + 1


def _name(machine: MonitoredMachine) -> str:
    model = machine.model
    mark = "?" if model.trouble or model.shown.snapshot is None else "!" if model.monitor.alerts else ""
    return fixed(printable(machine.name), _NAME_WIDTH).rstrip() + mark


MACHINE_KEYS = [
    Binding("f6,m", "page('machines')", "all machines", id="page-machines"),
    Binding("n", "turn_machine(1)", "next machine", id="next-machine"),
    Binding("b", "turn_machine(-1)", "previous machine", id="previous-machine"),
]
"""Keys that are active if several machines are shown."""


class MachineActions(PageActions):
    """Mixin of the app: switches between several machines."""

    machines: tuple[MonitoredMachine, ...]
    """All machines; empty if there is only one."""
    machine = 0
    """Index of the current machine."""
    playback: PlaybackController

    def turn_to_machine(self, index: int) -> None:
        """Show a machine on the current page, or on the overview instead of the list."""
        self.machine = index
        self.model, self.playback = self.machines[index].model, self.machines[index].playback
        self.machines_page.select(index)
        if self.page is self.machines_page:
            self.turn_to(self.pages[0])
        self.paint()

    def strip(self, width: int, height: int) -> tuple[Line, ...]:
        """Return the machine bar; nothing for one machine, or in a terminal without a spare line."""
        if not self.machines or height <= MIN_HEIGHT:
            return ()
        return (format_machine_bar(self.machines, self._shown_machine, width),)

    def click_strip(self, x: int) -> None:
        """Switch to the machine, or the list of all, at a column of the bar."""
        match choice_at(self.machines, self._shown_machine, self.size.width, x):
            case (None,):
                self.turn_to(self.machines_page)
            case (int(index),):
                self.turn_to_machine(index)

    @property
    def _shown_machine(self) -> int | None:
        return None if self.page is self.machines_page else self.machine

    @property
    def machines_page(self) -> MachinesPage:
        """The page that lists them, the last one."""
        page: MachinesPage = self.pages[-1]  # type: ignore[assignment]
        return page

    def action_turn_machine(self, steps: int) -> None:
        """Show the next or previous machine, around the ends."""
        if self.machines:
            self.turn_to_machine((self.machine + steps) % len(self.machines))
