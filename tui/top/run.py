"""The two ways to run neuron-top: live in the terminal, or one page as text or JSON."""

from __future__ import annotations

import gc
import json
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from neurontools.dashboard.monitor import MachineMonitor
from neurontools.machine.memory_tree import NodeKind
from neurontools.sources import open_source
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.page import PageOptions
from neurontools.tui.top.pages.registry import make_pages, page_data, page_text
from neurontools.tui.top.screen import text_screen
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import (
    FollowedSource,
    MachineAddress,
    RecordedSource,
    SeveralSource,
    SourceProblem,
    UpdateReader,
    UpdateSource,
    timed_snapshot,
)
from neurontools.tui.widgets.lines import printed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.dashboard.alerts import AlertCommand
    from neurontools.dashboard.snapshot_history import SnapshotHistory
    from neurontools.machine.snapshot import Snapshot
    from neurontools.tui.widgets.start_screen import StartScreen

# Periods without data from a live source before a warning.
_SILENT_PERIODS = 3
_WHOLE_INTERVAL = 0.75
_NARROWEST = 200
_UPDATES = 3  # the first two of a simulated machine are close together


class TopOptions(Struct, frozen=True):
    """The options of a command line and the configuration.

    `source` is as `neurontools.sources.open_source` takes it; `machine` is the simulated machine's name, None for the
    default. `filter` is of the process page. `alert_command` is run for each alert that begins, None for nothing.
    `record` is the file that is written, None for none; `replay` the recording that is played at `speed`, None to
    follow `source`. `places` are several machines, in place of `source` and `machine`.
    """

    source: str = "sim"
    machine: str | None = None
    settings: TopSettings = TopSettings()
    readonly: bool = False
    filter: str = ""
    alert_command: tuple[str, ...] | None = None
    record: str | None = None
    replay: str | None = None
    speed: float = 1.0
    places: tuple[MachineAddress, ...] = ()


class OpenedSource(NamedTuple):
    """A source; `live` is whether it yields a snapshot every period.

    `replay` is the history that it fills, and the speed; `machines` are name and source of each of several.
    """

    source: UpdateSource | SeveralSource
    live: bool
    replay: tuple[SnapshotHistory, float] | None = None
    machines: tuple[tuple[str, str], ...] = ()


def open_source_for(options: TopOptions, on_notice: Callable[[str], None] | None = None) -> OpenedSource:
    """Open the source that the options name.

    Args:
        options: of the command line.
        on_notice: called with a message when a machine was started.

    Raises:
        NeuronToolsError: it can't be opened, or the recording can't be made.
    """
    if options.replay is not None:
        from neurontools.dashboard.snapshot_history import SnapshotHistory
        from neurontools.tui.top.playback import REPLAY_BYTES, ReplaySource

        history = SnapshotHistory(disk_bytes=REPLAY_BYTES)
        return OpenedSource(
            ReplaySource(options.replay, history), live=False, replay=(history, options.speed)
        )
    if options.places:
        several = SeveralSource(options.places, options.settings.interval_s, options.record)
        names = [place.name for place in options.places]
        return OpenedSource(several, live=True, machines=tuple(zip(names, several.source_names, strict=True)))
    followed = FollowedSource(options.source, options.settings.interval_s, options.machine, on_notice)
    if options.record is None:
        return OpenedSource(followed, followed.live)
    from neurontools.dashboard.recorder import SnapshotRecorder

    try:
        recorder = SnapshotRecorder(options.record)
    except BaseException:
        followed.close()
        raise
    return OpenedSource(RecordedSource(followed, recorder), followed.live)


def run_live(
    options: TopOptions,
    *,
    colour: bool,
    notices: Sequence[str] = (),
    on_notice: Callable[[str], None] | None = None,
) -> int:
    """Show the dashboard until the user ends it.

    Args:
        options: of the command line.
        colour: False draws without any colour.
        notices: shown on the screen.
        on_notice: called with a message when a machine was started.

    Returns:
        The exit code.

    Raises:
        NeuronToolsError: the source can't be opened.
    """
    opened = open_source_for(options, on_notice)
    from neurontools.tui.top.first_frame import show_first_frame
    from neurontools.tui.widgets.start_screen import StartScreen

    reader = UpdateReader(opened.source)
    with closing(opened.source), StartScreen() as screen:
        if opened.live and not opened.machines:
            show_first_frame(
                screen,
                reader,
                options.settings,
                source=opened.source.name,
                colour=colour,
                process_filter=options.filter,
            )
        return _run_app(options, opened, reader, screen, colour=colour, notices=notices)


def _run_app(
    options: TopOptions,
    opened: OpenedSource,
    reader: UpdateReader,
    screen: StartScreen,
    *,
    colour: bool,
    notices: Sequence[str],
) -> int:
    from neurontools.tui.top.app import TopApp

    gc.freeze()  # modules stay, so no collection needs to look at them; the command has paused collections
    gc.enable()

    def show_failure(text: str) -> None:
        app.call_later(app.notify, text, severity="error", markup=False)

    command: AlertCommand | None = None
    if options.alert_command:
        from neurontools.dashboard.alerts import AlertCommand

        command = AlertCommand(options.alert_command, show_failure)
    app = TopApp(
        opened.source,
        colour=colour,
        silent_after_s=max(3.0, _SILENT_PERIODS * options.settings.interval_s) if opened.live else None,
        settings=options.settings,
        notices=notices,
        readonly=options.readonly,
        on_alert=command.run if command else None,
        process_filter=options.filter,
        replay=opened.replay,
        machines=opened.machines,
        reader=reader,
        start_screen=screen,
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
    return 1 if code is None else code  # none: it crashed, and Textual has shown the error


def one_page(
    options: TopOptions,
    width: int,
    *,
    as_json: bool = False,
    on_notice: Callable[[str], None] | None = None,
) -> tuple[str, tuple[str, ...]]:
    """Return a page as text or JSON, with rates over one interval, and notices for the user.

    Args:
        options: of the command line; of a recording the last snapshot is shown.
        width: cells in a line of text.
        as_json: JSON instead of text.
        on_notice: called with a message when a machine was started.

    Raises:
        NeuronToolsError: there is nothing to show.
    """
    settings = options.settings
    if options.places:
        return machines_page(options, width, as_json=as_json), ()
    pages = make_pages(PageOptions(settings.columns, readonly=True, process_filter=options.filter))
    page = pages.named(settings.page)
    with open_source(
        options.replay or options.source, machine=options.machine, on_notice=on_notice
    ) as opened:
        model = TopModel(colour=False, source=opened.name, monitor=MachineMonitor(settings.rules))
        snapshots = opened.watch(settings.interval_s if opened.live else 0.0)
        for snapshot in _until_rates(snapshots, settings.interval_s) if opened.live else snapshots:
            model.update(timed_snapshot(snapshot))
        if as_json:
            return json.dumps(page_data(page, model)), opened.notices
        if page.name == pages.names[0]:
            model.tree.expand_kinds(NodeKind.DEVICE, NodeKind.CORE)
            return text_screen(model, width), opened.notices
        return page_text(page, model, width), opened.notices


def _until_rates(snapshots: Iterator[Snapshot], interval_s: float) -> Iterator[Snapshot]:
    """Yield snapshots until they span an interval; on a busy computer the second may follow at once."""
    first_ns: int | None = None
    for snapshot in snapshots:
        yield snapshot
        if first_ns is None:
            first_ns = snapshot.taken_ns
        elif snapshot.taken_ns - first_ns >= _WHOLE_INTERVAL * interval_s * 1e9:
            return


def machines_page(options: TopOptions, width: int, *, as_json: bool = False) -> str:
    """Return the list, with rates over one interval, as soon as every machine has sent data or failed."""
    from neurontools.dashboard.snapshot_history import SnapshotHistory
    from neurontools.tui.top.pages.machines import MachinesPage
    from neurontools.tui.top.playback import MonitoredMachine, PlaybackController

    source = SeveralSource(options.places, options.settings.interval_s)
    machines = []
    for place, name in zip(options.places, source.source_names, strict=True):
        model = TopModel(colour=False, source=name, monitor=MachineMonitor(options.settings.rules))
        machines.append(MonitoredMachine(place.name, model, PlaybackController(model, SnapshotHistory())))
    missing = dict.fromkeys(range(len(machines)), _UPDATES)
    try:
        for update in source.updates():
            machines[update.index].model.update(update.update)
            left = missing.pop(update.index, 0) - 1
            if left > 0 and not isinstance(update.update, SourceProblem):
                missing[update.index] = left
            if not missing:
                break
    finally:
        source.close()
    page = MachinesPage(machines)
    model = machines[0].model
    if as_json:
        return json.dumps({"page": page.name, **page.data(model)})
    lines = page.lines(model, max(width, _NARROWEST), page.wanted_lines(model))
    return "\n".join(map(printed, lines))
