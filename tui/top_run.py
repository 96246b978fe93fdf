"""The two ways to run neuron-top: live in the terminal, or one screen as text."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from neurontools.machine.memory_tree import NodeKind
from neurontools.sources import open_source
from neurontools.tui.top_model import TopModel
from neurontools.tui.top_screen import text_screen
from neurontools.tui.top_source import FollowedSource, tick_of

if TYPE_CHECKING:
    from collections.abc import Callable

# Longer than this without news from a source that tells something every period: say so.
_SILENT_PERIODS = 3


def run_live(
    source: str,
    machine: str | None,
    interval_s: float,
    *,
    colour: bool,
    on_notice: Callable[[str], None] | None = None,
) -> int:
    """Show the dashboard until the user ends it.

    Args:
        source: as `neurontools.sources.open_source` takes it.
        machine: the simulated machine's name, None for the default.
        interval_s: time between two updates.
        colour: False draws without any colour.
        on_notice: gets a line for a person when a machine was started.

    Returns:
        The exit code.

    Raises:
        NeuronToolsError: the source can't be opened.
    """
    followed = FollowedSource(source, interval_s, machine, on_notice)
    from neurontools.tui.top_app import TopApp

    silent_after_s = max(3.0, _SILENT_PERIODS * interval_s) if followed.live else None
    app = TopApp(followed, colour=colour, silent_after_s=silent_after_s)
    code = app.run()
    if app.failure is not None:
        raise app.failure
    return code if code is not None else app.return_code or 0


def one_screen(
    source: str,
    machine: str | None,
    interval_s: float,
    width: int,
    on_notice: Callable[[str], None] | None = None,
) -> tuple[str, tuple[str, ...]]:
    """Return the dashboard as text, with rates over one interval, and what a user should know about it.

    Args:
        source: as `neurontools.sources.open_source` takes it; of a recording its last moment is shown.
        machine: the simulated machine's name, None for the default.
        interval_s: how long to watch.
        width: cells in a line.
        on_notice: gets a line for a person when a machine was started.

    Raises:
        NeuronToolsError: there is nothing to show.
    """
    with open_source(source, machine=machine, on_notice=on_notice) as opened:
        model = TopModel(colour=False, source=opened.name)
        snapshots = islice(opened.watch(interval_s), 2) if opened.live else opened.watch(0.0)
        for snapshot in snapshots:
            model.update(tick_of(snapshot))
        return screen_of(model, width), opened.notices


def screen_of(model: TopModel, width: int) -> str:
    """Return what a model shows as text, devices and cores in use opened."""
    model.expand_kinds(NodeKind.DEVICE, NodeKind.CORE)
    return text_screen(model, width)
