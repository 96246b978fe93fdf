"""Opening what a command line of neuron-top wants to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from neurontools.tui.top.source import FollowedSource, RecordedSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.dashboard.tape import Tape
    from neurontools.tui.top.machines.source import Place, SeveralSource
    from neurontools.tui.top.settings import TopSettings
    from neurontools.tui.top.source import Source


@dataclass(frozen=True, slots=True)
class Opened:
    """A source; `live` says whether it tells something every period.

    `replay` is the tape that it fills, and the speed; `machines` are name and source of each of several.
    """

    source: Source | SeveralSource
    live: bool
    replay: tuple[Tape, float] | None = None
    machines: tuple[tuple[str, str], ...] = ()


class Wanted(Protocol):
    """What is to be seen, in the words of `top_run.Wishes`."""

    @property
    def source(self) -> str:
        """As `neurontools.sources.open_source` takes it."""
        ...

    @property
    def machine(self) -> str | None:
        """The simulated machine's name, None for the default."""
        ...

    @property
    def settings(self) -> TopSettings:
        """The user's wishes."""
        ...

    @property
    def record(self) -> str | None:
        """The file that is written, None for none."""
        ...

    @property
    def replay(self) -> str | None:
        """The recording that is played, None for none."""
        ...

    @property
    def speed(self) -> float:
        """How many times as fast it is played."""
        ...

    @property
    def places(self) -> tuple[Place, ...]:
        """Several machines, in place of the source."""
        ...


def open_wanted(wishes: Wanted, on_notice: Callable[[str], None] | None = None) -> Opened:
    """Return the open source that is wanted.

    Args:
        wishes: what is wanted.
        on_notice: gets a line for a person when a machine was started.

    Raises:
        NeuronToolsError: it can't be opened, or the recording can't be made.
    """
    if wishes.replay is not None:
        from neurontools.dashboard.tape import Tape
        from neurontools.tui.top.playback.recording import REPLAY_BYTES, ReplaySource

        tape = Tape(disk_bytes=REPLAY_BYTES)
        return Opened(ReplaySource(wishes.replay, tape), live=False, replay=(tape, wishes.speed))
    if wishes.places:
        from neurontools.tui.top.machines.source import SeveralSource

        several = SeveralSource(wishes.places, wishes.settings.interval_s, wishes.record)
        names = [place.name for place in wishes.places]
        return Opened(several, live=True, machines=tuple(zip(names, several.source_names, strict=True)))
    followed = FollowedSource(wishes.source, wishes.settings.interval_s, wishes.machine, on_notice)
    if wishes.record is None:
        return Opened(followed, followed.live)
    from neurontools.dashboard.recorder import Recorder

    try:
        recorder = Recorder(wishes.record)
    except BaseException:
        followed.close()
        raise
    return Opened(RecordedSource(followed, recorder), followed.live)
