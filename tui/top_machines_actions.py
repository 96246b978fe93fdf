"""Turning from machine to machine in neuron-top, for the app to inherit, and the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding

from neurontools.tui.top_page_actions import PageActions

if TYPE_CHECKING:
    from neurontools.tui.top_machines import Machine, MachinesPage
    from neurontools.tui.top_time import TimeDeck

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

    @property
    def machines_page(self) -> MachinesPage:
        """The page that lists them, the last one."""
        page: MachinesPage = self.pages[-1]  # type: ignore[assignment]
        return page

    def action_turn_machine(self, steps: int) -> None:
        """Show the next or previous machine, around the ends."""
        if self.machines:
            self.turn_to_machine((self.machine + steps) % len(self.machines))
