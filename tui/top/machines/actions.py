"""Turning from machine to machine in neuron-top, for the app to inherit, and the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding

from neurontools.tui.top.layout import MIN_HEIGHT
from neurontools.tui.top.machines.bar import choice_at, strip_line
from neurontools.tui.top.page_actions import PageActions

if TYPE_CHECKING:
    from neurontools.tui.top.machines.page import Machine, MachinesPage
    from neurontools.tui.top.playback.controller import TimeDeck
    from neurontools.tui.widgets.lines import Line

MACHINE_KEYS = [
    Binding("f6,m", "page('machines')", "all machines", id="page-machines"),
    Binding("n", "turn_machine(1)", "next machine", id="next-machine"),
    Binding("b", "turn_machine(-1)", "previous machine", id="previous-machine"),
]
"""Keys that only mean something where several machines are shown."""


class MachineActions(PageActions):
    """Which of several machines is shown."""

    machines: tuple[Machine, ...]
    """All of them; empty where there is only one."""
    machine = 0
    """The position of the one that is shown."""
    deck: TimeDeck

    def turn_to_machine(self, index: int) -> None:
        """Show a machine on the page that is open, or on the overview instead of the list."""
        self.machine = index
        self.model, self.deck = self.machines[index].model, self.machines[index].deck
        self.machines_page.select(index)
        if self.page is self.machines_page:
            self.turn_to(self.pages[0])
        self.paint()

    def strip(self, width: int, height: int) -> tuple[Line, ...]:
        """Return the line that names the machines; nothing for one machine, or in a terminal that has no line to spare."""
        if not self.machines or height <= MIN_HEIGHT:
            return ()
        return (strip_line(self.machines, self._shown_machine, width),)

    def click_strip(self, x: int) -> None:
        """Show the machine, or the list of all, that is named at a column of that line."""
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
