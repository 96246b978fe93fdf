"""Where snapshots come from: the simulated machine, the real host, a recording of neuron-monitor, or an exporter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from neurontools.machine.snapshot import Snapshot

SIM, REAL = "sim", "real"


class Source(Protocol):
    """A machine: simulated, real, remote or recorded.

    `name` is a text for title bars: "sim:default", "real", "file:rec.jsonl". `notices` are lines for
    the user, such as what is missing; there may be more after each snapshot. `live` is False for a recording: its
    processes do not run now, and `watch` takes no time but the given period.
    """

    @property
    def live(self) -> bool:
        """Whether the machine goes on by itself."""
        ...

    @property
    def name(self) -> str:
        """The text for title bars."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines for the user about the data so far."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the current state of the machine; of a recording the last one.

        Raises:
            NeuronToolsError: there is no data (any more).
        """
        ...

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield a snapshot now, then one every `period_s` seconds; ends where a recording ends.

        Raises:
            NeuronToolsError: there is no data (any more).
        """
        ...

    def close(self) -> None:
        """Close the source. A second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_source(
    name: str,
    *,
    machine: str | None = None,
    looker: str | None = None,
    start: bool = True,
    on_notice: Callable[[str], None] | None = None,
) -> Source:
    """Return an open source of snapshots.

    Args:
        name: "sim", the simulated machine; "real", this host with its Neuron driver; "http://...", "https://..." or
            "https+insecure://...", the metrics of a neuron-monitor-prometheus; else the path of a recording, a file of
            neuron-monitor's lines ("./sim" for a file named so).
        machine: name of the simulated machine, None for that of NEURONTOOLS_MACHINE.
        looker: list this process among those that look at the devices, under this command (`neuron-ls -a`).
        start: whether a simulated machine that does not run may be started, where NEURONTOOLS_AUTOSTART allows it.
        on_notice: gets a line for a person when something was started.

    Raises:
        UsageError: there is no such source, or it has no machine of that name.
        RecordingError: the file can't be read.
        NoMachineError: the simulated machine does not run and may not be started, or this host has no driver (then
            it is a `NoDriverError`).
        DaemonError: its daemon refuses or does not answer.
    """
    if name == SIM:
        from neurontools.sources.sim import SimSource

        return SimSource(machine, looker=looker, start=start, on_notice=on_notice)
    from neurontools.errors import UsageError

    if machine is not None:
        raise UsageError(
            f"--machine {machine} names a simulated machine, source {name!r} is not simulated",
            "omit --machine or --source",
        )
    if name == REAL:
        from neurontools.sources.real import RealSource

        return RealSource()
    if name.startswith(("http://", "https://", "https+insecure://")):
        from neurontools.sources.remote import RemoteSource

        return RemoteSource(name)
    import os

    if not os.path.exists(name):
        raise UsageError(
            f"unknown source {name!r}",
            f"choose {SIM}, {REAL}, a file of neuron-monitor's lines, or the address of an exporter",
        )
    from neurontools.sources.recording import RecordingSource

    return RecordingSource(name)
