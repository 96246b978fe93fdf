"""The two ways to run neuron-top: live in the terminal, or one page as text or JSON."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.dashboard.lookout import Lookout
from neurontools.machine.memory_tree import NodeKind
from neurontools.sources import open_source
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.opening import open_wanted
from neurontools.tui.top.pages.registry import make_pages, page_data, page_text
from neurontools.tui.top.screen import text_screen
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import tick_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.machine.snapshot import Snapshot
    from neurontools.tui.top.machines.source import Place

# Longer than this without news from a source that tells something every period: say so.
_SILENT_PERIODS = 3
_WHOLE_INTERVAL = 0.75


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a command line and the configuration ask for.

    `source` is as `neurontools.sources.open_source` takes it; `machine` is the simulated machine's name, None for the
    default. `filter` is of the process page. `alert_command` is run for each alert that begins, None for nothing.
    `record` is the file that is written, None for none; `replay` the recording that is played at `speed`, None to
    follow `source`. `places` are several machines, in place of `source` and `machine`.
    """

    source: str = "sim"
    machine: str | None = None
    settings: TopSettings = field(default_factory=TopSettings)
    readonly: bool = False
    filter: str = ""
    alert_command: tuple[str, ...] | None = None
    record: str | None = None
    replay: str | None = None
    speed: float = 1.0
    places: tuple[Place, ...] = ()


def run_live(
    wishes: Wishes,
    *,
    colour: bool,
    notices: Sequence[str] = (),
    on_notice: Callable[[str], None] | None = None,
) -> int:
    """Show the dashboard until the user ends it.

    Args:
        wishes: what is wanted.
        colour: False draws without any colour.
        notices: what to tell the user on the screen.
        on_notice: gets a line for a person when a machine was started.

    Returns:
        The exit code.

    Raises:
        NeuronToolsError: the source can't be opened.
    """
    gc.disable()  # while much is imported that stays: no collection needs to look at it, now or later
    from neurontools.dashboard.alert_command import AlertCommand

    interval_s = wishes.settings.interval_s
    opened = open_wanted(wishes, on_notice)
    from neurontools.tui.top.app import TopApp

    gc.freeze()
    gc.enable()

    def tell(text: str) -> None:
        app.call_later(app.notify, text, severity="error", markup=False)

    command = AlertCommand(wishes.alert_command, tell) if wishes.alert_command else None
    app = TopApp(
        opened.source,
        colour=colour,
        silent_after_s=max(3.0, _SILENT_PERIODS * interval_s) if opened.live else None,
        settings=wishes.settings,
        notices=notices,
        readonly=wishes.readonly,
        on_alert=command.tell if command else None,
        process_filter=wishes.filter,
        replay=opened.replay,
        machines=opened.machines,
    )
    try:
        code = app.run()
    finally:
        if command:
            command.close()
    if app.failure is not None:
        raise app.failure
    if code is None:
        code = app.return_code
    return 1 if code is None else code  # none: it died, and Textual has shown of what


def one_page(
    wishes: Wishes,
    width: int,
    *,
    as_json: bool = False,
    on_notice: Callable[[str], None] | None = None,
) -> tuple[str, tuple[str, ...]]:
    """Return a page as text or JSON, with rates over one interval, and what a user should know about it.

    Args:
        wishes: what is wanted; of a recording its last moment is shown.
        width: cells in a line of text.
        as_json: JSON instead of text.
        on_notice: gets a line for a person when a machine was started.

    Raises:
        NeuronToolsError: there is nothing to show.
    """
    settings = wishes.settings
    if wishes.places:
        from neurontools.tui.top.machines.once import machines_page

        return machines_page(wishes, width, as_json=as_json), ()
    pages = make_pages(settings.columns, readonly=True, process_filter=wishes.filter)
    page = next(page for page in pages if page.name == settings.page)
    with open_source(wishes.replay or wishes.source, machine=wishes.machine, on_notice=on_notice) as opened:
        model = TopModel(colour=False, source=opened.name, lookout=Lookout(settings.rules))
        snapshots = opened.watch(settings.interval_s if opened.live else 0.0)
        for snapshot in _until_rates(snapshots, settings.interval_s) if opened.live else snapshots:
            model.update(tick_of(snapshot))
        if as_json:
            return json.dumps(page_data(page, model)), opened.notices
        if page is pages[0]:
            return screen_of(model, width), opened.notices
        return page_text(page, model, width), opened.notices


def _until_rates(snapshots: Iterator[Snapshot], interval_s: float) -> Iterator[Snapshot]:
    """Yield snapshots until they are an interval apart: on a busy computer the second may come right after the first."""
    first_ns: int | None = None
    for snapshot in snapshots:
        yield snapshot
        if first_ns is None:
            first_ns = snapshot.taken_ns
        elif snapshot.taken_ns - first_ns >= _WHOLE_INTERVAL * interval_s * 1e9:
            return


def screen_of(model: TopModel, width: int) -> str:
    """Return what a model shows as text, devices and cores in use opened."""
    model.tree.expand_kinds(NodeKind.DEVICE, NodeKind.CORE)
    return text_screen(model, width)
