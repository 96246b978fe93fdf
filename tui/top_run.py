"""The two ways to run neuron-top: live in the terminal, or one screen as text."""

from __future__ import annotations

import time

from neurontools.machine.memory_tree import NodeKind
from neurontools.tui.top_model import TopModel
from neurontools.tui.top_screen import text_screen
from neurontools.tui.top_source import DaemonSource, Tick

# Longer than this without news from a daemon that pushes every period: say so.
_SILENT_PERIODS = 3


def run_live(machine: str | None, interval_s: float, *, colour: bool) -> int:
    """Show the dashboard until the user ends it.

    Args:
        machine: the machine's name, None for the default.
        interval_s: time between two updates.
        colour: False draws without any colour.

    Returns:
        The exit code.
    """
    from neurontools.tui.top_app import TopApp

    silent_after_s = max(3.0, _SILENT_PERIODS * interval_s)
    app = TopApp(DaemonSource(machine, interval_s), colour=colour, silent_after_s=silent_after_s)
    code = app.run()
    if app.failure is not None:
        raise app.failure
    return code if code is not None else app.return_code or 0


def one_screen(machine: str | None, interval_s: float, width: int) -> str:
    """Return the dashboard as text, with rates over one interval.

    Args:
        machine: the machine's name, None for the default.
        interval_s: how long to watch.
        width: cells in a line.

    Raises:
        NoMachineError, DaemonError: there is nothing to show.
    """
    from neurontools.machine.client import Client
    from neurontools.machine.host import sample_for

    model = TopModel(colour=False)
    with Client.connect(machine) as client:
        for pause_s in (0.0, interval_s):
            time.sleep(pause_s)
            snapshot = client.snapshot()
            model.update(Tick(snapshot, sample_for(snapshot)))
    return screen_of(model, width)


def screen_of(model: TopModel, width: int) -> str:
    """Return what a model shows as text, devices and cores in use opened."""
    model.expand_kinds(NodeKind.DEVICE, NodeKind.CORE)
    return text_screen(model, width)
